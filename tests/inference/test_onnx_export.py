"""Export to ONNX: the file gives the encoder's vectors for any batch, or the model is refused with the reason."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from protlat.alphabet import PROTEIN
from protlat.cli.main import cli
from protlat.errors import ConfigError
from protlat.inference.onnx_export import PaddedEncoder, export_onnx
from protlat.models import Encoder, ModelConfig

GROUPS = [{"kind": "window", "n_heads": 1, "radius": 6}, {"kind": "efficient", "n_heads": 2, "scale": 0.5}]
BASE = {"d_model": 24, "n_layers": 2, "head_dim": 8, "attention": GROUPS}
EXPORTABLE = {
    "gate and conv": {"gate": {"output": "head"}},
    "channel gate": {"gate": {"output": "channel", "norm": False}},
    "conv on qkv": {"local_conv": {"size": 5, "target": "qkv"}, "norm": "rms"},
    "softmax": {
        "attention": [{"kind": "softmax", "n_heads": 3}],
        "feed_forward": {"kind": "swiglu"},
        "local_conv": None,
    },
    "learned, factorised": {"positions": {"kind": "learned", "max_length": 400}, "embedding_dim": 10},
    "by layer": {"attention_by_layer": {1: [{"kind": "softmax", "n_heads": 1, "rotary": False}]}},
}
# What torch's exporter itself warns of.
EXPORTER = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


def build(changes: dict) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(ModelConfig.parse({**BASE, **changes}), PROTEIN).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return encoder


def batch(lengths: list[int], generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(4, 24, (len(lengths), max(lengths)), generator=generator)
    return tokens, torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("name", EXPORTABLE)
def test_padded_form_is_the_encoder(rng: torch.Generator, name: str) -> None:
    encoder = build(EXPORTABLE[name])
    tokens, mask = batch([30, 1, 57, 12], rng)
    with torch.no_grad():
        ours = PaddedEncoder(encoder)(tokens, mask)
        poisoned = PaddedEncoder(encoder)(tokens.masked_fill(~mask, 7), mask)
        torch.testing.assert_close(ours, encoder.forward_padded(tokens, mask), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, poisoned)


@EXPORTER
def test_the_file_gives_the_same_vectors_for_any_batch(
    rng: torch.Generator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="extra [onnx] is not installed")
    onnx = pytest.importorskip("onnx")
    caplog.set_level(logging.ERROR)
    encoder = build(EXPORTABLE["gate and conv"])
    encoder.save_pretrained(tmp_path / "model")
    result = CliRunner().invoke(cli, ["export", str(tmp_path / "model"), "-o", str(tmp_path / "x.onnx")])
    assert result.exit_code == 0, result.output
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx")
    for lengths in ([30, 1, 57, 12], [5], [500, 499]):
        tokens, mask = batch(lengths, rng)
        out = session.run(None, {"tokens": tokens.numpy(), "mask": mask.numpy()})[0]
        with torch.no_grad():
            torch.testing.assert_close(
                torch.from_numpy(out), encoder.forward_padded(tokens, mask), rtol=1e-4, atol=1e-4
            )
    model = onnx.load(tmp_path / "x.onnx")
    properties = {item.key: item.value for item in model.metadata_props}
    assert json.loads(properties["tokens"]) == list(PROTEIN.tokens)
    assert str(Path(__file__).parents[2]).encode() not in (tmp_path / "x.onnx").read_bytes()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention": [{"kind": "linear", "n_heads": 3}]}, "linear heads"),
        ({"attention": [{"kind": "efficient", "n_heads": 3, "rotary": True}]}, "rotary efficient"),
        ({"gate": {"write": "head"}}, "gate.write=head"),
        ({"token_shift": True}, "model.token_shift=True"),
        ({"positions": {"kind": "sinusoidal"}}, "positions.kind=sinusoidal"),
    ],
)
def test_what_cannot_be_exported_is_named(changes: dict, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot be exported to ONNX: {reason}"):
        export_onnx(build(changes), tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()
