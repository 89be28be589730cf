"""Causal attention with exponential keys: weights softmax(q_i) . exp(k_j), divided by their sum; exact for keys of any size.

exp(k) has no bound, so every channel is divided by the exponential of a reference, and the query's channel multiplied
by it: softmax(q_i + reference) is the same up to a factor that the quotient drops. One reference per sequence, the
greatest key, serves as long as no token sees only keys that are tiny beside it; that is looked up in each call, and
otherwise sums with references of their own are merged, slower, at any range.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from protlat.ops.causal import Heads, Past, Sums, attend_chunks, chunk_size
from protlat.ops.causal_merge import NOTHING, Peaked, Turn, attend_merging, greatest_of_pairs, scaled, turned_rows
from protlat.ops.chunk_states import (
    CausalChunks,
    bucket_is_complete,
    causal_chunks,
    ends_of_chunks,
    from_chunks,
    to_chunks,
)
from protlat.ops.segments import Segments

# exp(-60) of the reference, times a channel's share of the query (1 / D at least for the greatest), is 16 orders of
# magnitude above the smallest normal float32 and bfloat16.
_SAFE_RANGE = 60.0
_MERGED_CHUNK = 64


class PeakedPast(NamedTuple):
    """What a causal head with exponential keys remembers of earlier calls; see `protlat.ops.causal.Past`."""

    seen: Peaked | None = None
    waiting: Peaked | None = None


def causal_exp_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    chunk: int = 128,
    blindspot: int = 1,
    turn: Turn | None = None,
    past: PeakedPast | None = None,
) -> tuple[torch.Tensor, PeakedPast]:
    """Weights sum over c of softmax(q_i)_c exp(k_jc) over the keys that query i sees, divided by their sum.

    Parameters
    ----------
    q, k : torch.Tensor, shape (T, H, M)
        Before softmax and exponential.
    v : torch.Tensor, shape (T, H, D)
    segments : Segments
    chunk : int
        Tokens per chunk; the result depends on it by rounding only.
    blindspot : int
        1: query i sees keys j <= i. B > 1: it sees keys of earlier buckets of B tokens only, and reads zero where
        there are none.
    turn : callable or None
        Turns channel pairs of features (T, H, M) by their position; applied in the numerator only.
    past : PeakedPast or None
        What an earlier call returned, or ``PeakedPast()`` before the first token; None: no memory is kept.

    Returns
    -------
    out : torch.Tensor, shape (T, H, D)
    past : PeakedPast
        For the next call; empty where none was given.

    Notes
    -----
    Time and memory as `protlat.ops.causal.causal_linear_attention`. Gradients do not flow through the references,
    which cancel.

    References
    ----------
    Shen et al. 2021, equation 5, read causally; Milakov and Gimelshein 2018 (running maximum).
    """
    q, k = q.to(v.dtype), k.to(v.dtype)
    # Autocast would take the sums, which are float32 on purpose, for the inputs of an ordinary product.
    with torch.autocast(v.device.type, enabled=False):
        return _attend(q, k, v, segments, chunk, blindspot, turn, past)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    chunk: int,
    blindspot: int,
    turn: Turn | None,
    past: PeakedPast | None,
) -> tuple[torch.Tensor, PeakedPast]:
    hold = past is not None and blindspot > 1
    chunks = causal_chunks(segments, chunk_size(chunk, segments, blindspot, past is not None), blindspot > 1)
    wide = torch.promote_types(v.dtype, torch.float32)
    rows_q, rows_k, rows_v = (to_chunks(x, chunks) for x in (q, k, v))
    before = PeakedPast() if past is None else past
    if past is None and _is_moderate(k, segments):
        out, _ = attend_chunks(
            _features(rows_q, rows_k, rows_v, None, turn, chunks), segments, chunks, blindspot, 0.0, None
        )
        return from_chunks(out, chunks), PeakedPast()
    peaks = greatest_of_pairs(rows_k.detach().amax(2).to(wide), turn)
    reference = _greatest(peaks, before, segments, chunks)
    if _spread(k, reference, before, segments, blindspot) > _SAFE_RANGE:
        if not hold:
            size = blindspot if blindspot > 1 else chunk_size(_MERGED_CHUNK, segments, 1, False)
            chunks = causal_chunks(segments, size, blindspot > 1)
            rows_q, rows_k, rows_v = (to_chunks(x, chunks) for x in (q, k, v))
        out, seen, waiting = attend_merging(
            rows_q, rows_k, rows_v, segments, chunks, blindspot, turn, before.seen, before.waiting, hold
        )
        return from_chunks(out.to(v.dtype), chunks), PeakedPast() if past is None else PeakedPast(seen, waiting)
    of_chunk = reference.index_select(1, chunks.segment)[:, :, None]
    sums = Past(*(None if x is None else Sums(*scaled(x, reference)[:2]) for x in before))
    heads = _features(rows_q, rows_k, rows_v, of_chunk, turn, chunks)
    out, after = attend_chunks(heads, segments, chunks, blindspot, 0.0, None if past is None else sums)
    kept = PeakedPast() if past is None else _peaked(after, reference, peaks, before, segments, chunks, blindspot)
    return from_chunks(out, chunks), kept


def _features(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    reference: torch.Tensor | None,
    turn: Turn | None,
    chunks: CausalChunks,
) -> Heads:
    """Features of queries and keys, the keys' divided by exp(reference); no reference: by nothing."""
    if reference is None:
        q, k = q.softmax(-1), k.exp()
    else:
        q, k = (q + reference).softmax(-1).to(v.dtype), (k - reference).exp().to(v.dtype)
    if turn is None:
        return Heads(q, k, v, q, k)
    return Heads(q, k, v, turned_rows(q, turn, chunks), turned_rows(k, turn, chunks))


def _is_moderate(k: torch.Tensor, segments: Segments) -> bool:
    """Whether exp(k) can be added up as it is: none overflows, and none of those that every token sees vanishes."""
    k = k.detach()
    greatest, first = k.amax(), k.index_select(0, segments.cu_seqlens[:-1]).amin()
    return float(torch.maximum(greatest, -first)) <= _SAFE_RANGE / 2


def _greatest(peaks: torch.Tensor, past: PeakedPast, segments: Segments, chunks: CausalChunks) -> torch.Tensor:
    """Greatest key of each sequence and channel, earlier calls included: (H, N, M) -> (H, S, M)."""
    if len(segments) == 1:
        greatest = peaks.amax(1, keepdim=True)
    else:
        index = chunks.segment[:, None].expand_as(peaks[0]).expand_as(peaks)
        start = peaks.new_full((len(peaks), len(segments), peaks.shape[-1]), NOTHING)
        greatest = start.scatter_reduce(1, index, peaks, "amax")
    for earlier in past:
        greatest = greatest if earlier is None else torch.maximum(greatest, earlier.peak)
    return greatest


def _spread(k: torch.Tensor, reference: torch.Tensor, past: PeakedPast, segments: Segments, blindspot: int) -> float:
    """By how much a reference exceeds the greatest key of its channel that a token sees, at most."""
    # Every token that sees anything sees the memory, or else the first token of the call.
    least = k.detach().index_select(0, segments.cu_seqlens[:-1]).transpose(0, 1).to(reference.dtype)
    if past.seen is not None:
        seen = past.seen.peak
        if past.waiting is not None:
            least = torch.maximum(least, past.waiting.peak)
        # With a blind spot, the first bucket sees the memory alone.
        least = torch.maximum(least, seen) if blindspot == 1 else torch.where(seen > NOTHING, seen, least)
    return float((reference - least).amax())


def _peaked(
    after: Past,
    reference: torch.Tensor,
    peaks: torch.Tensor,
    before: PeakedPast,
    segments: Segments,
    chunks: CausalChunks,
    blindspot: int,
) -> PeakedPast:
    """The sums with the greatest key of what they hold as reference, so that later calls know their range."""
    assert after.seen is not None
    if blindspot == 1:
        return PeakedPast(Peaked(*after.seen, reference))
    assert after.waiting is not None
    seen_peak, waiting_peak = peaks_with_last_held(peaks, before, segments, chunks)
    pairs = ((after.seen, seen_peak), (after.waiting, waiting_peak))
    return PeakedPast(*(scaled(Peaked(*sums, reference), peak) for sums, peak in pairs))


def peaks_with_last_held(
    peaks: torch.Tensor, before: PeakedPast, segments: Segments, chunks: CausalChunks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greatest keys of what is seen and of the last bucket, (H, S, M) each, with one bucket a chunk."""
    first, last = ends_of_chunks(segments, chunks)
    seen = None if before.seen is None else before.seen.peak
    if before.waiting is not None:
        assert seen is not None
        complete = bucket_is_complete(segments, chunks.size)[:, None]
        waiting = before.waiting.peak
        seen = torch.maximum(seen, torch.where(complete, waiting, NOTHING))
        own = torch.maximum(peaks.index_select(1, first), torch.where(complete, NOTHING, waiting))
        peaks = peaks.index_copy(1, first, own)
    held = peaks.index_select(1, last)
    rest = PeakedPast() if seen is None else PeakedPast(Peaked(seen, seen, seen))
    return _greatest(peaks.index_fill(1, last, NOTHING), rest, segments, chunks), held
