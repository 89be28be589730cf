"""Decay attention against its quadratic definition, and what it keeps: chunks, direction, pieces, extremes."""

from __future__ import annotations

import itertools

import pytest
import torch

from protlat.ops import reference
from protlat.ops.decay import Memory, decay_attention, decay_attention_from
from protlat.ops.decay_scan import faded_sums
from protlat.ops.segments import Segments

LAYOUTS = [[1], [37], [5, 1, 16, 33], [64, 3]]
# Float64 sums in another order.
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def inputs(generator: torch.Generator, n_tokens: int, per_token: bool = True, positive: bool = False):
    q, k, v = (torch.randn(n_tokens, 2, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    if positive:
        q, k = q.exp(), k.exp()
    shape = (n_tokens, 2) if per_token else (2,)
    log_decay = -torch.rand(*shape, generator=generator, dtype=torch.float64).square()
    own = torch.randn(n_tokens, 2, generator=generator, dtype=torch.float64)
    return [x.requires_grad_() for x in (q, k, v, log_decay, own)]


def plain(q, k, v, log_decay, own, lengths, causal, normaliser):
    """The definition, one sequence at a time."""
    log_decay = log_decay.expand(len(q), -1)
    parts = zip(*(x.split(lengths) for x in (q, k, v, log_decay)), strict=True)
    owns = [None] * len(lengths) if own is None else own.split(lengths)
    return torch.cat(
        [
            reference.decay_attention(*part, causal=causal, own=mine, normaliser=normaliser)
            for part, mine in zip(parts, owns, strict=True)
        ]
    )


@pytest.mark.parametrize("lengths", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["plain", "own", "normaliser"])
@pytest.mark.parametrize("per_token", [True, False])
def test_values_and_gradients(
    rng: torch.Generator, lengths: list[int], causal: bool, form: str, per_token: bool
) -> None:
    q, k, v, log_decay, own = inputs(rng, sum(lengths), per_token, positive=form == "normaliser")
    free = own if form == "own" else None
    wanted = [q, k, v, log_decay, *([] if free is None else [own])]
    theirs = plain(q, k, v, log_decay, free, lengths, causal, form == "normaliser")
    weight = torch.randn(theirs.shape, generator=rng, dtype=torch.float64)
    # A single token never meets a decay.
    expected = torch.autograd.grad((theirs * weight).sum(), wanted, allow_unused=True, materialize_grads=True)
    for chunk in (1, 7, 64):
        ours = decay_attention(
            q, k, v, log_decay, Segments(lengths), causal, own=free, normaliser=form == "normaliser", chunk=chunk
        )
        torch.testing.assert_close(ours, theirs, **EXACT)
        found = torch.autograd.grad((ours * weight).sum(), wanted, allow_unused=True, materialize_grads=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("form", ["plain", "own", "normaliser"])
def test_a_reversed_sequence_gives_the_reversed_output(rng: torch.Generator, form: str) -> None:
    lengths = [23, 1, 40]
    *packed, own = inputs(rng, sum(lengths), positive=form == "normaliser")
    turn = torch.cat([part.flip(0) for part in torch.arange(sum(lengths)).split(lengths)])
    free = own if form == "own" else None

    def attend(rows: torch.Tensor) -> torch.Tensor:
        mine = None if free is None else free[rows]
        chosen = [x[rows] for x in packed]
        return decay_attention(*chosen, Segments(lengths), False, own=mine, normaliser=form == "normaliser", chunk=8)

    torch.testing.assert_close(attend(turn), attend(torch.arange(sum(lengths)))[turn], **EXACT)


@pytest.mark.parametrize("form", ["plain", "own", "normaliser"])
@pytest.mark.parametrize("per_token", [True, False])
def test_pieces_and_single_steps_equal_the_whole(rng: torch.Generator, form: str, per_token: bool) -> None:
    lengths = [13, 4, 21]
    q, k, v, log_decay, own = inputs(rng, sum(lengths), per_token, positive=form == "normaliser")
    log_decay = log_decay.expand(len(q), -1)
    free, normaliser = (own if form == "own" else None), form == "normaliser"
    whole = decay_attention(q, k, v, log_decay, Segments(lengths), True, own=free, normaliser=normaliser)
    expected = [part.split([n - 3, 1, 1, 1]) for n, part in zip(lengths, whole.split(lengths), strict=True)]
    cut = [
        [part.split([n - 3, 1, 1, 1]) for n, part in zip(lengths, x.split(lengths), strict=True)]
        for x in (q, k, v, log_decay, own)
    ]
    memory: Memory | None = None
    for piece in range(4):
        now = [torch.cat([sequence[piece] for sequence in x]) for x in cut]
        sizes = [len(sequence[piece]) for sequence in cut[0]]
        mine = None if free is None else now[4]
        out, memory = decay_attention_from(memory, *now[:4], Segments(sizes), own=mine, normaliser=normaliser, chunk=5)
        torch.testing.assert_close(out, torch.cat([sequence[piece] for sequence in expected]), **EXACT)
    assert (memory.keys is not None) == normaliser


def test_two_pieces_carry_gradients(rng: torch.Generator) -> None:
    q, k, v, log_decay, _ = inputs(rng, 30)
    whole = decay_attention(q, k, v, log_decay, Segments([30]), True)
    weight = torch.randn(whole.shape, generator=rng, dtype=torch.float64)
    expected = torch.autograd.grad((whole * weight).sum(), [q, k, v, log_decay])
    memory, out = None, []
    for part in (slice(0, 17), slice(17, 30)):
        piece = Segments([part.stop - part.start])
        values, memory = decay_attention_from(memory, q[part], k[part], v[part], log_decay[part], piece, chunk=4)
        out.append(values)
    found = torch.autograd.grad((torch.cat(out) * weight).sum(), [q, k, v, log_decay])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("value", [0.0, -1e-30, -5.0, -200.0])
def test_extreme_decays(rng: torch.Generator, causal: bool, value: float) -> None:
    """Decay exactly 1, and so small that products underflow: values and gradients as in the definition."""
    q, k, v, log_decay, _ = inputs(rng, 50)
    log_decay = torch.full_like(log_decay, value).requires_grad_()
    theirs = plain(q, k, v, log_decay, None, [40, 10], causal, False)
    ours = decay_attention(q, k, v, log_decay, Segments([40, 10]), causal, chunk=8)
    torch.testing.assert_close(ours, theirs, **EXACT)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), log_decay) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_one_decay_of_one_sees_everything_alike(rng: torch.Generator) -> None:
    """Without decay, both directions together are plain linear attention."""
    q, k, v, _, _ = inputs(rng, 70, positive=True)
    ours = decay_attention(q, k, v, q.new_zeros(2), Segments([70]), False, normaliser=True, chunk=16)
    torch.testing.assert_close(ours, reference.linear_attention(q, k, v), **EXACT)


@pytest.mark.parametrize("causal", [False, True])
def test_equal_keys_over_36_000_tokens_in_bfloat16(rng: torch.Generator, causal: bool) -> None:
    n_tokens = 36_000
    key = torch.nn.functional.normalize(torch.randn(2, 16, generator=rng), dim=-1)
    same = key.expand(n_tokens, 2, 16).bfloat16()
    v = torch.ones(n_tokens, 2, 16).bfloat16()
    log_decay = torch.tensor([0.0, -1e-3])
    out = decay_attention(same, same, v, log_decay, Segments([n_tokens]), causal).float()
    assert out.isfinite().all()
    # The last query sees every token once: n of them without decay, 1 / (1 - a) with it.
    expected = torch.tensor([n_tokens, 1 / (1 - torch.tensor(-1e-3).exp())])
    torch.testing.assert_close(out[-1].mean(-1), expected, rtol=0.02, atol=0)


def test_a_query_without_features_reads_zero(rng: torch.Generator) -> None:
    q, k, v, log_decay, _ = inputs(rng, 20, positive=True)
    q = torch.cat([q[:9], torch.zeros_like(q[9:10]), q[10:]]).detach().requires_grad_()
    out = decay_attention(q, k, v, log_decay, Segments([20]), False, normaliser=True, chunk=4)
    assert out[9].abs().max() == 0
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), [q, k, v, log_decay]))


def test_an_own_weight_and_a_normaliser_are_refused(rng: torch.Generator) -> None:
    q, k, v, log_decay, own = inputs(rng, 5)
    with pytest.raises(ValueError, match="cannot stand with a normaliser"):
        decay_attention(q, k, v, log_decay, Segments([5]), False, own=own, normaliser=True)


@pytest.mark.parametrize("counts", [[1], [40], [33, 1, 64], [1] * 70, [3, 1100, 2], [2] * 600])
@pytest.mark.parametrize("backward", [False, True])
def test_faded_sums(rng: torch.Generator, counts: list[int], backward: bool) -> None:
    """One group, several, and groups of groups, against the recurrence."""
    n = sum(counts)
    x = torch.randn(2, n, 3, generator=rng, dtype=torch.float64)
    fade = -torch.rand(2, n, generator=rng, dtype=torch.float64)
    starts = [0, *itertools.accumulate(counts)][:-1]
    fresh = torch.zeros(n, dtype=torch.bool).index_fill_(0, torch.tensor(starts), True)
    expected = torch.zeros_like(x)
    for start, count in zip(starts, counts, strict=True):
        state = torch.zeros_like(x[:, 0])
        for step in range(count):
            i = start + (count - 1 - step if backward else step)
            expected[:, i] = state
            state = state * fade[:, i, None].exp() + x[:, i]
    torch.testing.assert_close(faded_sums(x, fade, fresh, backward), expected, **EXACT)
