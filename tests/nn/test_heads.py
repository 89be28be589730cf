"""Heads of labels: convolutions that reset at borders, results that do not depend on batch-mates, precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from protlat.nn.heads import (
    AnyHead,
    AttentionHeadConfig,
    CnnHeadConfig,
    LabelHead,
    LinearHeadConfig,
    MlpHeadConfig,
    PackedConv,
    needs_residues,
)
from protlat.ops.segments import Segments

LENGTHS = (5, 1, 12, 3)
SEQUENCE_HEADS = (
    LinearHeadConfig(), LinearHeadConfig(pool="attention"), MlpHeadConfig(n_hidden=2), CnnHeadConfig(width=6),
    CnnHeadConfig(width=6, pool="mean", n_layers=3), AttentionHeadConfig(hidden=7),
)  # fmt: skip
RESIDUE_HEADS = (
    LinearHeadConfig(),
    MlpHeadConfig(),
    CnnHeadConfig(width=6, kernel=3),
    CnnHeadConfig(width=6, kernel=9),
)


@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("graph", [True, False])
def test_convolution_is_that_of_each_sequence_alone(kernel: int, graph: bool, rng: torch.Generator) -> None:
    layer = PackedConv(4, 3, kernel)
    plain = nn.Conv1d(4, 3, kernel, padding=kernel // 2)
    with torch.no_grad():
        plain.weight.copy_(layer.weight.view(kernel, 3, 4).permute(1, 2, 0))
        plain.bias.copy_(layer.bias.normal_(generator=rng))
    x = torch.randn(sum(LENGTHS), 4, generator=rng)
    with torch.set_grad_enabled(graph):
        found = layer(x, Segments(LENGTHS))
        wanted = torch.cat([plain(part.T[None])[0].T for part in x.split(LENGTHS)])
    assert_close(found, wanted)


def test_convolution_of_a_long_sequence_goes_tap_by_tap(monkeypatch: pytest.MonkeyPatch, rng: torch.Generator) -> None:
    layer, x = PackedConv(4, 3, 5), torch.randn(30, 4, generator=rng)
    with torch.no_grad():
        at_once = layer(x, Segments((30,)))
        monkeypatch.setattr("protlat.nn.heads._ROWS_AT_ONCE", 8)
        assert_close(layer(x, Segments((30,))), at_once)


def built(config: AnyHead, per_residue: bool) -> LabelHead:
    torch.manual_seed(0)
    head = LabelHead(config, 8, 3, per_residue).eval()
    head.set_input(torch.full((8,), 0.3), torch.linspace(0.5, 2, 8))
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.3)
    return head


@pytest.mark.parametrize(
    ("config", "per_residue"), [*((c, False) for c in SEQUENCE_HEADS), *((c, True) for c in RESIDUE_HEADS)], ids=str
)
def test_results_do_not_depend_on_batch_mates(config: AnyHead, per_residue: bool, rng: torch.Generator) -> None:
    head, x = built(config, per_residue), torch.randn(sum(LENGTHS), 8, generator=rng)
    together = head(x, Segments(LENGTHS))
    alone = torch.cat([head(part, Segments((len(part),))) for part in x.split(LENGTHS)])
    assert together.shape == (sum(LENGTHS) if per_residue else len(LENGTHS), 3)
    # Products of other shapes round otherwise.
    assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [c for c in SEQUENCE_HEADS if not needs_residues(c, per_residue=False)], ids=str)
def test_the_mean_is_all_that_some_heads_want(config: AnyHead, rng: torch.Generator) -> None:
    head, x = built(config, per_residue=False), torch.randn(sum(LENGTHS), 8, generator=rng)
    means = torch.stack([part.mean(0) for part in x.split(LENGTHS)])
    assert_close(head(means, Segments((1,) * len(LENGTHS))), head(x, Segments(LENGTHS)), rtol=1e-4, atol=1e-5)


def test_no_gradient_crosses_a_border(rng: torch.Generator) -> None:
    head = built(CnnHeadConfig(width=6), per_residue=True)
    x = torch.randn(sum(LENGTHS), 8, generator=rng, requires_grad=True)
    head(x, Segments(LENGTHS))[6:18].sum().backward()
    assert x.grad is not None
    assert x.grad[6:18].abs().sum() > 0
    assert x.grad[:6].abs().sum() == 0
    assert x.grad[18:].abs().sum() == 0


def test_narrow_weights_give_wide_results(rng: torch.Generator) -> None:
    head, x = built(CnnHeadConfig(width=16), per_residue=True), torch.randn(40, 8, generator=rng)
    wide = head(x, Segments((40,)))
    narrow = head.bfloat16()(x.half(), Segments((40,)))
    assert narrow.dtype == torch.float32
    assert_close(narrow, wide, rtol=0.05, atol=0.1)  # eight bits through three layers


def test_channels_without_spread_and_start_of_a_head() -> None:
    head = LabelHead(LinearHeadConfig(), 4, 3, per_residue=True).eval()
    head.set_input(torch.ones(4), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    prior = torch.tensor([-1.0, 0.5, 2.0])
    head.set_prior(prior)
    assert_close(head(torch.ones(2, 4), Segments((2,))), prior.expand(2, 3))


def test_attention_pooling_is_for_sequences() -> None:
    with pytest.raises(ValueError, match="use cnn or mlp"):
        LabelHead(AttentionHeadConfig(), 8, 3, per_residue=True)
