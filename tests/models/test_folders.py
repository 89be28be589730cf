"""Configs, presets and model folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from protlat.alphabet import BYTES, PROTEIN
from protlat.errors import CheckpointError, ConfigError, SequenceError
from protlat.models import (
    Encoder,
    MaskedLM,
    ModelConfig,
    describe_model,
    load_preset,
    model_hash,
    preset_names,
    resolve_model_folder,
)
from protlat.ops.segments import Segments
from tests.models.variants import VARIANTS

SIZES = {
    "tiny": (0.8e6, 1.3e6),
    "small": (7e6, 9e6),
    "base": (32e6, 38e6),
    "large": (140e6, 165e6),
    "fast": (7.5e6, 8.5e6),
    **{f"lat{more}": (18.9e6, 20.6e6) for more in ("", "_gate", "_conv", "_full")},
}


@pytest.mark.parametrize("name", preset_names())
def test_presets_build_at_their_size(name: str) -> None:
    config = load_preset(name)
    with torch.device("meta"):
        model = MaskedLM(config, PROTEIN)
    low, high = SIZES[name]
    assert low < model.n_parameters() < high


def test_every_preset_has_a_size() -> None:
    assert set(preset_names()) == set(SIZES)


def test_round_trip(tmp_path: Path) -> None:
    model = MaskedLM(VARIANTS["both-gates"], PROTEIN).eval()
    model.save_pretrained(tmp_path / "run" / "model", card="# A model\n")
    again = MaskedLM.from_pretrained(tmp_path / "run")
    tokens, segments = torch.arange(4, 24), Segments([20])
    with torch.no_grad():
        assert torch.equal(model(tokens, segments), again(tokens, segments))
        encoder = Encoder.from_pretrained(tmp_path / "run" / "model")
        assert torch.equal(model.encoder(tokens, segments)[2], encoder(tokens, segments)[2])
    assert not again.training
    assert again.config == model.config
    assert (tmp_path / "run" / "model" / "README.md").read_text() == "# A model\n"
    encoder.save_pretrained(tmp_path / "alone")
    alone = Encoder.from_pretrained(tmp_path / "alone", dtype=torch.bfloat16)
    assert next(alone.parameters()).dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match="is missing; a MaskedLM needs it"):
        MaskedLM.from_pretrained(tmp_path / "alone")


def test_other_alphabets_come_back(tmp_path: Path) -> None:
    MaskedLM(VARIANTS["default"], BYTES).save_pretrained(tmp_path)
    assert MaskedLM.from_pretrained(tmp_path).alphabet == BYTES


def test_hash_follows_the_weights(tmp_path: Path) -> None:
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        MaskedLM(VARIANTS["default"], PROTEIN).save_pretrained(tmp_path / str(seed))
    assert model_hash(tmp_path / "1") != model_hash(tmp_path / "2")
    assert describe_model(tmp_path / "1")["parameters"] == MaskedLM(VARIANTS["default"], PROTEIN).n_parameters()


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no model here"):
        resolve_model_folder(tmp_path)
    MaskedLM(VARIANTS["default"], PROTEIN).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-100])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        MaskedLM.from_pretrained(tmp_path)
    weights.write_bytes(good)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"]["d_model"] = 32
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="has shape"):
        MaskedLM.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        MaskedLM.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a model config"):
        MaskedLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"d_modle": 3}, "d_modle: unknown key; did you mean 'd_model'"),
        ({"attention": [{"kind": "windw", "n_heads": 1}]}, "expected tags: 'window', "),
        ({"attention": [{"kind": "window", "n_heads": 1, "radios": 3}]}, "unknown key; did you mean 'radius'"),
        ({"attention": []}, "attention"),
        ({"attention": [{"kind": "window", "n_heads": 1}], "gate": {"write": "head"}}, "use gate.output"),
        ({"attention_by_layer": {7: [{"kind": "linear", "n_heads": 1}]}}, "layers are numbered 0 to 3"),
        ({"local_conv": {"size": 4}}, "must be odd"),
        ({"head_dim": 7}, "use an even one"),
        ({"positions": {"kind": "learned"}}, "max_length"),
        ({"dropout": {"residual": 1.0}}, "less than 1"),
    ],
)
def test_impossible_settings_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.parse(values)


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        load_preset("smal")


def test_preset_overrides(tmp_path: Path) -> None:
    config = load_preset("tiny", ("n_layers=2", "attention.0.radius=8"))
    assert config.n_layers == 2
    assert config.attention[0].radius == 8
    (tmp_path / "mine.yaml").write_text(config.to_yaml())
    assert load_preset(tmp_path / "mine.yaml") == config
    (tmp_path / "commented.yaml").write_text(config.to_commented_yaml())
    assert load_preset(tmp_path / "commented.yaml") == config


def test_learned_positions_refuse_longer_input() -> None:
    config = ModelConfig.parse({"positions": {"kind": "learned", "max_length": 8}})
    with pytest.raises(SequenceError, match="at most 8"):
        MaskedLM(config, PROTEIN)(torch.full((9,), 5), Segments([9]))


def test_layers_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"layers 0 \(embedding\) to 2"):
        MaskedLM(VARIANTS["default"], PROTEIN).encoder(torch.tensor([5]), Segments([1]), layers=(3,))
