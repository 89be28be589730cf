"""Attention to a context against its definitions."""

from __future__ import annotations

import pytest
import torch

from protlat.nn.cross_attention import Context, CrossAttention, EfficientRead, LinformerRead, SoftmaxRead
from protlat.nn.state import RecurrentState
from protlat.ops import reference
from protlat.ops.segments import Segments

LENGTHS, SOURCES = [4, 4, 1, 90, *[3] * 18], [7, 7, 80, 1, *[5] * 17, 6]


def build(kind: str) -> CrossAttention:
    torch.manual_seed(4)
    reads = {
        "efficient": lambda: EfficientRead(0.5),
        "softmax": lambda: SoftmaxRead(0.0),
        "linformer": lambda: LinformerRead(100, 5, "headwise", 0.0),
    }
    return CrossAttention(12, 10, 2, 8, reads[kind]()).double()


def plain(layer: CrossAttention, kind: str, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """One sequence (L, E) and its context (n, C)."""
    q = (x @ layer.project_query.weight.T).view(-1, 2, 8)
    k, v = ((context @ w.T).view(-1, 2, 8) for w in layer.project_context.weight.chunk(2))
    if kind == "efficient":
        out = 0.5 * reference.cross_efficient_attention(q, k, v)
    elif kind == "softmax":
        out = reference.cross_softmax_attention(q, k, v)
    else:
        out = reference.linformer_attention(q, k, v, layer.core.maps.keys, layer.core.maps.values)
    return out.flatten(1) @ layer.mix.weight.T + layer.mix.bias


@pytest.mark.parametrize("kind", ["efficient", "softmax", "linformer"])
@pytest.mark.parametrize("with_state", [False, True])
def test_layer_is_its_definition(rng: torch.Generator, kind: str, with_state: bool) -> None:
    layer = build(kind)
    x = torch.randn(sum(LENGTHS), 12, generator=rng, dtype=torch.float64).requires_grad_()
    context = torch.randn(sum(SOURCES), 10, generator=rng, dtype=torch.float64).requires_grad_()
    state = RecurrentState() if with_state else None
    ours = layer(x, Segments(LENGTHS), Context(context, Segments(SOURCES)), state)
    theirs = torch.cat(
        [plain(layer, kind, a, b) for a, b in zip(x.split(LENGTHS), context.split(SOURCES), strict=True)]
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    weight = torch.randn(ours.shape, generator=rng, dtype=torch.float64)
    inputs = [x, context, *layer.parameters()]
    gradients = [torch.autograd.grad((out * weight).sum(), inputs) for out in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["efficient", "softmax", "linformer"])
def test_bfloat16_and_extreme_keys(rng: torch.Generator, kind: str) -> None:
    layer = build(kind).float()
    x, context = torch.randn(sum(LENGTHS), 12, generator=rng), torch.randn(sum(SOURCES), 10, generator=rng)
    with torch.no_grad():
        assert layer(1e4 * x, Segments(LENGTHS), Context(1e4 * context, Segments(SOURCES))).isfinite().all()
        wide = layer(x, Segments(LENGTHS), Context(context, Segments(SOURCES)))
        layer.bfloat16()
        narrow = layer(x.bfloat16(), Segments(LENGTHS), Context(context.bfloat16(), Segments(SOURCES)))
    assert (narrow.float() - wide).norm() / wide.norm() < 0.03
