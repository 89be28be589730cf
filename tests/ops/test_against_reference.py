"""Every fast operation equals its plain definition in float64, values and gradients, sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from protlat.ops import local, pooled, reference
from protlat.ops.segments import Segments

# Borders inside and across blocks and chunks, length one, runs of equal length, a block-sized sequence.
LAYOUTS = [[1], [37], [5, 1, 16, 16, 16, 33], [1, 1, 1], [64, 3]]
# Sums of some hundred float64 products taken in another order.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}


def heads(generator: torch.Generator, n_tokens: int, n: int = 3, dim: int = 6) -> list[torch.Tensor]:
    return [torch.randn(n_tokens, 2, dim, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(n)]


def check(
    fast: Callable[..., torch.Tensor],
    plain: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    lengths: list[int],
    n_packed: int,
) -> None:
    """Compare values and gradients; the first `n_packed` inputs are split by sequence for the plain definition."""
    ours = fast(*inputs)
    theirs = torch.cat(
        [
            plain(*parts, *inputs[n_packed:])
            for parts in zip(*(x.split(lengths) for x in inputs[:n_packed]), strict=True)
        ]
    )
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    ours_grad = torch.autograd.grad((ours * weight).sum(), inputs)
    theirs_grad = torch.autograd.grad((theirs * weight).sum(), inputs)
    for a, b in zip(ours_grad, theirs_grad, strict=True):
        torch.testing.assert_close(a, b, **TOLERANCE)


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("radius", [1, 4, 16, 50])
def test_window_attention(rng: torch.Generator, lengths: list[int], radius: int) -> None:
    segments = Segments(lengths)
    inputs = heads(rng, segments.n_tokens)
    check(
        lambda q, k, v: local.window_attention(q, k, v, segments, radius),
        lambda q, k, v: reference.window_attention(q, k, v, radius),
        inputs, lengths, 3,
    )  # fmt: skip
    with torch.no_grad():
        # Without a graph the work goes another way: views and plain products.
        quick = local.window_attention(*inputs, segments, radius)
    torch.testing.assert_close(quick, local.window_attention(*inputs, segments, radius), **TOLERANCE)


def test_window_attention_in_slabs(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments([90, 11, 70])
    inputs = heads(rng, segments.n_tokens)
    whole = local.window_attention(*inputs, segments, 4)
    monkeypatch.setattr(local, "_BLOCKS_PER_SLAB", 5)
    torch.testing.assert_close(local.window_attention(*inputs, segments, 4), whole, **TOLERANCE)


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize(("way", "chunk"), [("split", 8), ("chunked", 8), ("chunked", 16), ("chunked", 128)])
def test_efficient_attention(rng: torch.Generator, lengths: list[int], way: str, chunk: int) -> None:
    segments = Segments(lengths)

    def fast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        features = pooled.softmax_over_positions(k, segments, way, chunk)
        return pooled.pooled_attention(q.softmax(-1), features, v, segments, way, chunk)

    check(fast, reference.efficient_attention, heads(rng, segments.n_tokens), lengths, 3)


@pytest.mark.parametrize("lengths", [*LAYOUTS, [7] * 37, [64] * 3, [4500]])
def test_rounded_lengths_change_nothing(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, lengths: list[int]
) -> None:
    """What bfloat16 does on CPU, lengthened sequences in bundles, done in float64."""
    segments = Segments(lengths)
    q, k, v = heads(rng, segments.n_tokens)
    plain = pooled.pooled_attention(q, k, v, segments, "split")
    monkeypatch.setattr(pooled, "_ROUNDED_DTYPES", (torch.float64,))
    rounded = pooled.pooled_attention(q, k, v, segments, "split")
    torch.testing.assert_close(rounded, plain, **TOLERANCE)
    weight = torch.randn(plain.shape, generator=rng, dtype=plain.dtype)
    expected = torch.autograd.grad((plain * weight).sum(), (q, k, v))
    for ours, theirs in zip(torch.autograd.grad((rounded * weight).sum(), (q, k, v)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("size", [3, 5, 7])
def test_depthwise_conv(rng: torch.Generator, lengths: list[int], size: int) -> None:
    segments = Segments(lengths)
    x, weight, bias = (
        torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_()
        for shape in ((segments.n_tokens, 4), (size, 4), (4,))
    )
    check(
        lambda x, w, b: local.depthwise_conv(x, w, b, segments), reference.depthwise_conv, [x, weight, bias], lengths, 1
    )
    with torch.no_grad():
        torch.testing.assert_close(
            local.depthwise_conv(x, weight, bias, segments),
            torch.cat([reference.depthwise_conv(part, weight, bias) for part in x.split(lengths)]),
            **TOLERANCE,
        )


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("channels", [2, 3, 7, 9])
def test_token_shift(rng: torch.Generator, lengths: list[int], channels: int) -> None:
    segments = Segments(lengths)
    x = torch.randn(segments.n_tokens, channels, generator=rng, dtype=torch.float64).requires_grad_()
    check(lambda x: local.token_shift(x, segments), reference.token_shift, [x], lengths, 1)


def test_segment_mean_is_taken_in_float32(rng: torch.Generator) -> None:
    # In bfloat16 a running sum of ones stops growing at 256.
    segments = Segments([3000, 5])
    mean = pooled.segment_mean(torch.ones(3005, 2, dtype=torch.bfloat16), segments)
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean, torch.ones(2, 2))


@pytest.mark.parametrize("way", ["split", "chunked"])
def test_keys_of_any_size_do_not_overflow(way: str) -> None:
    k = torch.tensor([[[500.0]], [[-500.0]], [[90.0]], [[89.0]]])
    features = pooled.softmax_over_positions(k, Segments([2, 2]), way, 2).flatten()
    expected = torch.tensor([1.0, 0.0, 1 / (1 + torch.e**-1), 1 / (1 + torch.e)])
    torch.testing.assert_close(features, expected)
