"""Low-rank heads: definition, the fixed length, sharing between layers."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError, SequenceError
from protlat.models import MaskedLM, ModelConfig
from protlat.nn.attention.linformer import LinformerAttention
from protlat.ops import reference
from protlat.ops.segments import Segments

SIZE = {"d_model": 24, "n_layers": 3, "head_dim": 8}
HEADS = {"kind": "linformer", "n_heads": 2, "max_length": 300, "k": 5}
# Neighbours of one length, of many, more than a batch of short ones, one as long as the matrices
LENGTHS = [3, 3, 1, 70, 70, *[9] * 18, 300, 2]


def settings(**changes: object) -> ModelConfig:
    return ModelConfig.parse({**SIZE, "attention": [{**HEADS, **changes}]})


@pytest.mark.parametrize("sharing", ["headwise", "key_value", "layerwise"])
def test_core_is_its_definition(rng: torch.Generator, sharing: str) -> None:
    core = LinformerAttention(300, 5, sharing, 0.0).double()
    q, k, v, weight = (torch.randn(sum(LENGTHS), 2, 8, generator=rng, dtype=torch.float64) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)] + list(core.parameters())
    assert len(inputs) == (5 if sharing == "headwise" else 4)
    maps = core.maps.keys, core.maps.keys if core.maps.values is None else core.maps.values
    ours = core(q, k, v, Segments(LENGTHS))
    parts = zip(*(x.split(LENGTHS) for x in (q, k, v)), strict=True)
    theirs = torch.cat([reference.linformer_attention(*part, *maps) for part in parts])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad((out * weight).sum(), inputs) for out in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    with torch.no_grad():
        narrow = core.bfloat16()(*(x.bfloat16() for x in (q, k, v)), Segments(LENGTHS)).double()
    assert (narrow - ours).norm() / ours.norm() < 0.03


def test_matrices_start_within_their_bounds() -> None:
    maps = LinformerAttention(1000, 16, "headwise", 0.0).maps
    for matrix in (maps.keys, maps.values):
        assert 0.24 < matrix.abs().max() <= 0.25
        assert abs(matrix.mean()) < 0.01
    assert not torch.equal(maps.keys, maps.values)


def test_longer_input_is_refused_and_filler_is_not_too_long(rng: torch.Generator) -> None:
    for limit in (70, 300):
        model = MaskedLM(settings(max_length=limit), PROTEIN)
        with torch.no_grad():
            # 4 * 69 tokens are rounded up by a filler sequence where it cannot be longer than the matrices.
            assert model(torch.full((4 * 69,), 5), Segments([69] * 4)).isfinite().all()
            with pytest.raises(SequenceError, match=f"{limit + 1} tokens, .* at most {limit} .* use efficient heads"):
                model(torch.full((limit + 1,), 5), Segments([limit + 1]))
        assert model.config.max_length == limit
    assert ModelConfig.parse({**SIZE, "attention_by_layer": {1: [HEADS]}}).max_length == 300


def test_one_matrix_for_all_layers(rng: torch.Generator, tmp_path: Path) -> None:
    model = MaskedLM(settings(sharing="layerwise"), PROTEIN)
    names = [name for name in model.state_dict() if "maps" in name]
    assert names == ["encoder.shared_maps.keys"]
    assert [n for n, _ in model.named_parameters() if "maps" in n] == names
    single = MaskedLM(settings(sharing="key_value"), PROTEIN)
    assert single.n_parameters() - model.n_parameters() == 2 * 300 * 5
    tokens, segments = torch.randint(4, 24, (50,), generator=rng), Segments([50])
    model.eval().save_pretrained(tmp_path)
    again, copied = MaskedLM.from_pretrained(tmp_path), copy.deepcopy(model)
    with torch.no_grad():
        before = model(tokens, segments)
        assert torch.equal(again(tokens, segments), before)
        # Each layer of a copy reads the copy's matrix.
        copied.encoder.shared_maps.keys.zero_()
        assert torch.equal(model(tokens, segments), before)
        assert not torch.equal(copied(tokens, segments), before)
    owners = {id(block.attention.cores[0].maps) for block in copied.encoder.blocks}
    assert owners == {id(copied.encoder.shared_maps)}


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"linformer heads cannot be causal: .*; use linear, efficient or decay"):
        ModelConfig.parse({**SIZE, "causal": True, "attention": [HEADS]})
    other = {1: [{**HEADS, "sharing": "layerwise", "k": 7}]}
    config = ModelConfig.parse({**SIZE, "attention": [{**HEADS, "sharing": "layerwise"}], "attention_by_layer": other})
    with pytest.raises(ConfigError, match=r"one matrix for all layers.*give them equal sizes"):
        MaskedLM(config, PROTEIN)
    with pytest.raises(ConfigError, match="max_length"):
        ModelConfig.parse({**SIZE, "attention": [{"kind": "linformer", "n_heads": 1}]})


def test_dropout_acts_in_training_only(rng: torch.Generator) -> None:
    model = MaskedLM(settings(dropout=0.5), PROTEIN).eval()
    tokens, segments = torch.randint(4, 24, (50,), generator=rng), Segments([50])
    with torch.no_grad():
        assert torch.equal(model(tokens, segments), model(tokens, segments))
        model.train()
        assert not torch.equal(model(tokens, segments), model(tokens, segments))
