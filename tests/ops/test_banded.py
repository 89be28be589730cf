"""Banded attention against its L x L definition; no leak; nothing grows with the square of the length."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protlat.ops import banded, reference
from protlat.ops.banded import ACTIVATIONS, BandSettings, banded_attention, banded_step
from protlat.ops.offset_convolution import convolve_offsets
from protlat.ops.segments import Segments

# Borders inside and across blocks, length one, one sequence that fills whole blocks and has inner ones.
LAYOUTS = [[1], [40, 1, 7, 33], [200, 3]]
# Sums of some hundred float64 products taken in another order.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}
OPTIONS = [
    (normalise, activation, remask)
    for normalise, activation, remask in product(
        ("none", "softmax", "rmsnorm"), ("none", "gelu", "tanh"), (True, False)
    )
    if remask or normalise != "softmax"
]


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def plain(inputs: list[torch.Tensor], taps: torch.Tensor, lengths: list[int], settings: BandSettings) -> torch.Tensor:
    return torch.cat(
        [
            reference.banded_attention(
                *parts, taps.expand(-1, parts[0].shape[1], -1), settings.radius, causal=settings.causal,
                normalise=settings.normalise, activation=ACTIVATIONS.get(settings.activation), scale=settings.scale,
                remask_output=settings.remask_output,
            )
            for parts in zip(*(x.split(lengths) for x in inputs), strict=True)
        ]
    )  # fmt: skip


def check(inputs: list[torch.Tensor], taps: torch.Tensor, lengths: list[int], settings: BandSettings) -> None:
    ours = banded_attention(*inputs, taps, Segments(lengths), settings)
    theirs = plain(inputs, taps, lengths, settings)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    gradients = [torch.autograd.grad((out * weight).sum(), [*inputs, taps]) for out in (ours, theirs)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, **TOLERANCE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("normalise", "activation", "remask"), OPTIONS)
def test_every_option(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, causal: bool, normalise: Any, activation: Any, remask: bool
) -> None:
    monkeypatch.setattr(banded, "_LEAST_BLOCK", 8)
    settings = BandSettings(5, causal, normalise, activation, True, remask)
    for lengths in LAYOUTS:
        check([normal(rng, sum(lengths), 2, 6) for _ in range(3)], normal(rng, 2, 2, 3), lengths, settings)


@pytest.mark.parametrize("radius", [1, 16, 60])
@pytest.mark.parametrize(
    ("rounds", "kernels", "n_taps", "scale"), [(1, 2, 3, False), (3, 1, 3, True), (2, 2, 121, True)]
)
def test_radius_rounds_and_taps(
    rng: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
    radius: int,
    rounds: int,
    kernels: int,
    n_taps: int,
    scale: bool,
) -> None:
    """Kernels up to the whole band; several slabs of blocks."""
    monkeypatch.setattr(banded, "_TOKENS_PER_SLAB", 64)
    lengths = [150, 1, 30]
    taps = normal(rng, rounds, kernels, min(n_taps, 2 * radius + 1))
    inputs = [normal(rng, sum(lengths), 2, 4) for _ in range(3)]
    for causal in (False, True):
        check(inputs, taps, lengths, BandSettings(radius, causal, scale=scale))


@pytest.mark.parametrize("n_columns", [1, 5, 48, 131])
@pytest.mark.parametrize("n_taps", [3, 9, 101])
@pytest.mark.parametrize("n_kernels", [1, 3])
def test_convolution_along_the_offsets(rng: torch.Generator, n_columns: int, n_taps: int, n_kernels: int) -> None:
    scores, taps = normal(rng, 3, 4, 2, n_columns), normal(rng, n_kernels, n_taps)
    half = n_taps // 2
    moved = torch.nn.functional.pad(scores, (half, half)).unfold(-1, n_taps, 1)
    theirs = torch.einsum("habct,ht->habc", moved, taps.expand(3, -1))
    ours = convolve_offsets(scores, taps)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    weight = torch.randn(ours.shape, generator=rng, dtype=ours.dtype)
    for a, b in zip(*(torch.autograd.grad((x * weight).sum(), [scores, taps]) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, **TOLERANCE)


@pytest.mark.parametrize("normalise", ["none", "softmax", "rmsnorm"])
@pytest.mark.parametrize("remask", [True, False])
def test_nothing_later_moves_a_causal_token(rng: torch.Generator, normalise: Any, remask: bool) -> None:
    """By gradient and by perturbation; a convolution moves scores over the mask, so each has to be masked again."""
    settings = BandSettings(6, True, normalise, "gelu", True, remask or normalise == "softmax")
    inputs, taps, segments = [normal(rng, 50, 2, 4) for _ in range(3)], normal(rng, 3, 2, 5), Segments([50])
    at = 20
    out = banded_attention(*inputs, taps, segments, settings)
    for gradient in torch.autograd.grad(out[: at + 1].square().sum(), inputs):
        assert torch.equal(gradient[at + 1 :], torch.zeros_like(gradient[at + 1 :]))
        assert gradient[at].abs().sum() > 0
    changed = [torch.cat([x[: at + 1], 100 * x[at + 1 :]]) for x in inputs]
    assert torch.equal(banded_attention(*changed, taps, segments, settings)[: at + 1], out[: at + 1])


def test_keys_beyond_the_reach_do_not_act(rng: torch.Generator) -> None:
    inputs, taps, segments = [normal(rng, 80, 1, 4) for _ in range(3)], normal(rng, 2, 1, 5), Segments([80])
    for remask, reach in ((True, 6), (False, 8)):
        settings = BandSettings(6, False, "none", "none", True, remask)
        out = banded_attention(*inputs, taps, segments, settings)
        rows = torch.autograd.grad(out[40].sum(), inputs[2])[0].abs().sum((1, 2)).nonzero().flatten().tolist()
        assert (rows[0], rows[-1]) == (40 - reach, 40 + reach)


@pytest.mark.parametrize("normalise", ["none", "softmax", "rmsnorm"])
def test_one_step_is_the_last_row(rng: torch.Generator, normalise: Any) -> None:
    settings = BandSettings(4, True, normalise, "silu", True, normalise == "softmax")
    taps = normal(rng, 2, 2, 5)
    reach = settings.reach(5)
    lengths = [1, 3, 30]
    q, k, v = (normal(rng, sum(lengths), 2, 4) for _ in range(3))
    whole = banded_attention(q, k, v, taps, Segments(lengths), settings).split(lengths)
    # What stands before the start of a sequence is not read.
    keys, values = (
        torch.stack([torch.cat([x.new_full((reach + 1, 2, 4), 1e6), part])[-reach - 1 :] for part in x.split(lengths)])
        for x in (k, v)
    )
    last = torch.stack([part[-1] for part in q.split(lengths)])
    ours = banded_step(last, keys, values, torch.tensor(lengths) - 1, taps, settings)
    torch.testing.assert_close(ours, torch.stack([part[-1] for part in whole]), **TOLERANCE)


class _Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


@pytest.mark.parametrize("lengths", [[1], [100] * 10])
def test_no_tensor_grows_with_the_square_of_the_length(rng: torch.Generator, lengths: list[int]) -> None:
    sizes = []
    for times in (1, 4):
        many = [times * 1000] if len(lengths) == 1 else lengths * times
        inputs = [normal(rng, sum(many), 1, 4) for _ in range(3)]
        with _Largest() as largest:
            out = banded_attention(*inputs, normal(rng, 2, 1, 3), Segments(many), BandSettings(20))
            out.sum().backward()
        sizes.append(largest.numel)
    assert sizes[1] <= 4.1 * sizes[0]
    assert sizes[1] <= 4000 * 80
