"""The delta rule in chunks against the recurrence, and what it keeps: pieces, sequences, extremes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from protlat.ops import reference
from protlat.ops.delta import delta_rule
from protlat.ops.segments import Segments

LAYOUTS = [[1], [37], [5, 1, 16, 33], [3, 64, 64, 20]]
# Float64 sums in another order.
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def inputs(generator: torch.Generator, n_tokens: int, gated: bool = True) -> list[torch.Tensor | None]:
    q, k, v = (torch.randn(n_tokens, 2, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    beta = 2 * torch.rand(n_tokens, 2, generator=generator, dtype=torch.float64)
    log_decay = -torch.rand(n_tokens, 2, generator=generator, dtype=torch.float64).square()
    made = [x.requires_grad_() for x in (q, F.normalize(k, dim=-1), v, beta, log_decay)]
    return made if gated else [*made[:4], None]


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("from_state", [True, False])
def test_values_and_gradients(rng: torch.Generator, lengths: list[int], gated: bool, from_state: bool) -> None:
    made = inputs(rng, sum(lengths), gated)
    start = None
    if from_state:
        start = torch.randn(len(lengths), 2, 6, 6, generator=rng, dtype=torch.float64).requires_grad_()
    parts = zip(*([None] * len(lengths) if x is None else x.split(lengths) for x in made), strict=True)
    starts = [None] * len(lengths) if start is None else start.unbind(0)
    done = [reference.delta_rule(*part, first) for part, first in zip(parts, starts, strict=True)]
    theirs, theirs_after = torch.cat([out for out, _ in done]), torch.stack([after for _, after in done])
    weights = [torch.randn(x.shape, generator=rng, dtype=torch.float64) for x in (theirs, theirs_after)]
    wanted = [x for x in (*made, start) if x is not None]

    def gradients(out: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = (out * weights[0]).sum() + (after * weights[1]).sum()
        return torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)

    expected = gradients(theirs, theirs_after)
    for chunk in (1, 7, 64):
        ours, after = delta_rule(*made, Segments(lengths), start, chunk)
        torch.testing.assert_close(ours, theirs, **EXACT)
        torch.testing.assert_close(after, theirs_after, **EXACT)
        for a, b in zip(gradients(ours, after), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("gated", [True, False])
def test_pieces_and_single_steps_equal_the_whole(rng: torch.Generator, gated: bool) -> None:
    lengths = [13, 4, 21]
    made = inputs(rng, sum(lengths), gated)
    whole, end = delta_rule(*made, Segments(lengths), chunk=8)
    pieces = [[n - 3, 1, 1, 1] for n in lengths]
    cut = [
        None if x is None else [part.split(sizes) for sizes, part in zip(pieces, x.split(lengths), strict=True)]
        for x in (*made, whole)
    ]
    state = None
    for piece in range(4):
        *now, expected = [None if x is None else torch.cat([sequence[piece] for sequence in x]) for x in cut]
        out, state = delta_rule(*now, Segments([sizes[piece] for sizes in pieces]), state, chunk=5)
        torch.testing.assert_close(out, expected, **EXACT)
    torch.testing.assert_close(state, end, **EXACT)


def test_a_later_token_changes_nothing_before_it(rng: torch.Generator) -> None:
    made = inputs(rng, 40)
    out, _ = delta_rule(*made, Segments([25, 15]), chunk=8)
    gradients = torch.autograd.grad(out[12].sum(), made)
    for gradient in gradients:
        assert gradient[13:].abs().max() == 0


def test_full_shares_of_one_key_keep_the_last_value(rng: torch.Generator) -> None:
    """With beta 1 and the same key throughout, the memory holds the newest value alone, at any length."""
    n_tokens = 36_000
    key = F.normalize(torch.randn(2, 16, generator=rng), dim=-1)
    same = key.expand(n_tokens, 2, 16).bfloat16()
    v = torch.randn(n_tokens, 2, 16, generator=rng).bfloat16()
    out, state = delta_rule(same, same, v, torch.ones(n_tokens, 2), None, Segments([n_tokens]))
    assert out.isfinite().all()
    # The rounded key is not of length one to the last digit.
    torch.testing.assert_close(out.float(), v.float(), rtol=0.05, atol=0.05)
    assert state.dtype == torch.float32


@pytest.mark.parametrize("value", [0.0, -5.0, -200.0])
def test_extreme_decays(rng: torch.Generator, value: float) -> None:
    q, k, v, beta, log_decay = inputs(rng, 50)
    log_decay = torch.full_like(log_decay, value).requires_grad_()
    ours = delta_rule(q, k, v, beta, log_decay, Segments([50]), chunk=8)[0]
    theirs = reference.delta_rule(q, k, v, beta, log_decay)[0]
    torch.testing.assert_close(ours, theirs, **EXACT)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), log_decay) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
