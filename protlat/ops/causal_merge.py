"""Causal attention with exponential keys whose range exceeds that of a float: sums with references of their own, merged.

The pairs of a chunk are split by halving: the right half of every block reads the left half, whose greatest key, which
all of them see, is the reference. Each level is two batched products; there are log2(C) levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from protlat.ops.chunk_states import (
    CausalChunks,
    bucket_is_complete,
    chunk_steps,
    ends_of_chunks,
    from_chunks,
    to_chunks,
)
from protlat.ops.segments import Segments

Turn = Callable[[torch.Tensor], torch.Tensor]
NOTHING = -1e30
"""Reference of an empty sum: finite, so that differences of references stay numbers."""
_GREATEST = 80.0


class Peaked(NamedTuple):
    """Sums of exp(k - peak) over some keys, float32 or wider; the first dimensions are (H, S) or (H, N).

    Attributes
    ----------
    memory : torch.Tensor, shape (H, S, M, D)
        Sum of exp(k - peak) v^T.
    norm : torch.Tensor, shape (H, S, M)
        Sum of exp(k - peak).
    peak : torch.Tensor, shape (H, S, M)
        Greatest key of each channel.
    """

    memory: torch.Tensor
    norm: torch.Tensor
    peak: torch.Tensor


class Reading(NamedTuple):
    """Part of a quotient, (H, N, C, D), (H, N, C, 1) and (H, N, C, 1): true sums are exp(scale) times these."""

    value: torch.Tensor
    weight: torch.Tensor
    scale: torch.Tensor


def scaled(sums: Peaked, peak: torch.Tensor) -> Peaked:
    """The same sums with another reference."""
    # An empty sum may be given the reference of nothing: zero times a large number, not times infinity.
    factor = (sums.peak - peak).clamp_max(_GREATEST).exp()
    return Peaked(sums.memory * factor[..., None], sums.norm * factor, peak)


def merge(a: Peaked, b: Peaked) -> Peaked:
    """Sums over the keys of both."""
    peak = torch.maximum(a.peak, b.peak)
    a, b = scaled(a, peak), scaled(b, peak)
    return Peaked(a.memory + b.memory, a.norm + b.norm, peak)


def attend_merging(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    chunks: CausalChunks,
    blindspot: int,
    turn: Turn | None,
    seen: Peaked | None,
    waiting: Peaked | None,
    hold: bool,
) -> tuple[torch.Tensor, Peaked, Peaked | None]:
    """Causal attention on rows of chunks (H, N, C, *), at any range of keys.

    Parameters
    ----------
    q, k, v : torch.Tensor, shape (H, N, C, *)
    segments : Segments
    chunks : CausalChunks
        Of a power of two of rows, or of `blindspot` rows where that is more than one.
    blindspot : int
    turn : callable or None
    seen, waiting : Peaked or None
        Of earlier calls.
    hold : bool
        Whether the last bucket is kept apart for the next call.

    Returns
    -------
    out : torch.Tensor, shape (H, N, C, D)
    seen : Peaked
    waiting : Peaked or None
    """
    wide = torch.promote_types(v.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q, k, v))
    k = k.masked_fill(chunks.absent, NOTHING)
    by_chunk = _sums(k, v, turn, chunks)
    held = None
    if hold:
        seen, by_chunk, held = _hold_last_bucket(by_chunk, seen, waiting, segments, chunks)
    before, total = _merged_before(by_chunk, seen, segments, chunks)
    reading = _read(q, before, turn, chunks)
    if blindspot == 1:
        reading = _join(reading, _read_itself(q, k, v, turn, chunks))
        half = 1
        while half < chunks.size:
            reading = _join(reading, _read_left_halves(q, k, v, half, turn, chunks))
            half *= 2
    return reading.value / torch.where(reading.weight > 0, reading.weight, 1), total, held


def greatest_of_pairs(peaks: torch.Tensor, turn: Turn | None) -> torch.Tensor:
    """Channels of a pair that will be turned share their reference, which then commutes with the turn."""
    if turn is None:
        return peaks
    return peaks.unflatten(-1, (-1, 2)).amax(-1, keepdim=True).expand(*peaks.shape[:-1], -1, 2).flatten(-2)


def turned_rows(x: torch.Tensor, turn: Turn | None, chunks: CausalChunks) -> torch.Tensor:
    """Features (H, N, C, M) turned by their position."""
    return x if turn is None else to_chunks(turn(from_chunks(x, chunks)), chunks)


def _sums(k: torch.Tensor, v: torch.Tensor, turn: Turn | None, chunks: CausalChunks) -> Peaked:
    """Of each chunk."""
    peak = greatest_of_pairs(k.detach().amax(2), turn)
    features = (k - peak[:, :, None]).exp()
    return Peaked(turned_rows(features, turn, chunks).transpose(-1, -2) @ v, features.sum(2), peak)


def _merged_before(
    by_chunk: Peaked, initial: Peaked | None, segments: Segments, chunks: CausalChunks
) -> tuple[Peaked, Peaked]:
    """For every chunk the sums over the chunks of its sequence before it (H, N, ...), and over all (H, S, ...)."""
    order, places = chunk_steps(segments, chunks)
    if initial is None:
        shape = (by_chunk.norm.shape[0], len(segments))
        zeros = (x.new_zeros(*shape, *x.shape[2:]) for x in by_chunk)
        initial = Peaked(*zeros)
        initial = initial._replace(peak=initial.peak + NOTHING)
    running = Peaked(*(x.index_select(1, order) for x in initial))
    before, ended = [], []
    for place in places:
        n = len(order) if isinstance(place, slice) else len(place)
        ended.append(Peaked(*(x[:, n:] for x in running)))
        running = Peaked(*(x[:, :n] for x in running))
        before.append(running)
        running = merge(running, Peaked(*(x[:, place] for x in by_chunk)))
    ended.append(running)
    back = order.argsort()
    total = Peaked(*(torch.cat(parts, 1).index_select(1, back) for parts in zip(*reversed(ended), strict=True)))
    numbers = torch.arange(by_chunk.norm.shape[1], device=order.device)
    where = [numbers[place] for place in places]
    back = torch.cat(where).argsort()
    return Peaked(*(torch.cat(parts, 1).index_select(1, back) for parts in zip(*before, strict=True))), total


def _read(q: torch.Tensor, sums: Peaked, turn: Turn | None, chunks: CausalChunks) -> Reading:
    """Every row of a chunk reads the chunk's sums (H, N, ...)."""
    weights, scale = _weights(q + sums.peak[:, :, None])
    return Reading(turned_rows(weights, turn, chunks) @ sums.memory, weights @ sums.norm[..., None], scale)


def _read_itself(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, turn: Turn | None, chunks: CausalChunks) -> Reading:
    """Every row reads its own key: turned by the same angle, which leaves the product as it is."""
    weights, scale = _weights(q + k)
    weight = weights.sum(-1, keepdim=True)
    return Reading(weight * v, weight, scale)


def _read_left_halves(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, half: int, turn: Turn | None, chunks: CausalChunks
) -> Reading:
    """In blocks of 2 * half rows, the right half reads the left half."""
    shape = (-1, 2, half)
    q_right, k_left, v_left = (x.flatten(1, 2).unflatten(1, shape)[:, :, side] for x, side in ((q, 1), (k, 0), (v, 0)))
    peak = greatest_of_pairs(k_left.detach().amax(2), turn)[:, :, None]
    features = (k_left - peak).exp()
    weights, scale = _weights(q_right + peak)
    weight = (weights @ features.transpose(-1, -2)).sum(-1, keepdim=True)
    if turn is not None:
        features = turned_rows(_with_half(features, 0, k.shape), turn, chunks)
        weights = turned_rows(_with_half(weights, 1, q.shape), turn, chunks)
        features, weights = (
            x.flatten(1, 2).unflatten(1, shape)[:, :, side] for x, side in ((features, 0), (weights, 1))
        )
    value = (weights @ features.transpose(-1, -2)) @ v_left
    scale = torch.stack([torch.full_like(scale, NOTHING), scale], 2).view(*q.shape[:3], 1)
    return Reading(_with_half(value, 1, v.shape), _with_half(weight, 1, (*q.shape[:3], 1)), scale)


def _weights(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """exp(logits - greatest) and the greatest."""
    scale = logits.detach().amax(-1, keepdim=True)
    return (logits - scale).exp(), scale


def _with_half(x: torch.Tensor, side: int, shape: Sequence[int]) -> torch.Tensor:
    """Rows of one half of every block, with zeros for the other half."""
    halves = [x, torch.zeros_like(x)] if side == 0 else [torch.zeros_like(x), x]
    return torch.stack(halves, 2).view(*shape)


def _join(a: Reading, b: Reading) -> Reading:
    scale = torch.maximum(a.scale, b.scale)
    of_a, of_b = (a.scale - scale).exp(), (b.scale - scale).exp()
    return Reading(a.value * of_a + b.value * of_b, a.weight * of_a + b.weight * of_b, scale)


def _hold_last_bucket(
    by_chunk: Peaked, seen: Peaked | None, waiting: Peaked | None, segments: Segments, chunks: CausalChunks
) -> tuple[Peaked | None, Peaked, Peaked]:
    """As `protlat.ops.causal.hold_last_bucket`."""
    first, last = ends_of_chunks(segments, chunks)
    if waiting is not None:
        assert seen is not None
        complete = bucket_is_complete(segments, chunks.size)
        seen = merge(seen, _only(complete, waiting))
        joined = merge(Peaked(*(x.index_select(1, first) for x in by_chunk)), _only(~complete, waiting))
        by_chunk = Peaked(*(x.index_copy(1, first, y) for x, y in zip(by_chunk, joined, strict=True)))
    held = Peaked(*(x.index_select(1, last) for x in by_chunk))
    fills = (0.0, 0.0, NOTHING)
    return seen, Peaked(*(x.index_fill(1, last, fill) for x, fill in zip(by_chunk, fills, strict=True))), held


def _only(chosen: torch.Tensor, sums: Peaked) -> Peaked:
    """The sums of the sequences chosen (S,), empty ones elsewhere."""
    chosen = chosen[:, None]
    memory, norm, peak = sums
    return Peaked(memory * chosen[..., None], norm * chosen, torch.where(chosen, peak, NOTHING))
