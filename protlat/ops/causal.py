"""Causal linear attention, exact, in chunks: a sum over earlier chunks and a masked product inside each chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from protlat.ops.causal_product import CausalProduct
from protlat.ops.chunk_states import (
    CausalChunks,
    bucket_is_complete,
    causal_chunks,
    ends_of_chunks,
    from_chunks,
    sums_before,
    to_chunks,
)
from protlat.ops.divisor import divisor
from protlat.ops.segments import Segments


class Sums(NamedTuple):
    """Keys and values added up, float32 or wider.

    Attributes
    ----------
    memory : torch.Tensor, shape (H, S, M, D)
        Sum of phi(k) v^T over keys of each of S sequences (or chunks).
    norm : torch.Tensor, shape (H, S, M)
        Sum of phi(k) over them.
    """

    memory: torch.Tensor
    norm: torch.Tensor


class Past(NamedTuple):
    """What a causal head remembers of earlier calls.

    Attributes
    ----------
    seen : Sums or None
        Keys that every token to come sees; None: there were no earlier tokens.
    waiting : Sums or None
        Keys of the last bucket, which later buckets alone see; None without a blind spot.
    """

    seen: Sums | None = None
    waiting: Sums | None = None


class Heads(NamedTuple):
    """Features of queries and keys, and values; (T, H, *) packed or (H, N, C, *) in chunks.

    `turned_q` and `turned_k` take the place of `q` and `k` in the numerator, where features are turned by their position.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    turned_q: torch.Tensor
    turned_k: torch.Tensor


def chunk_size(wanted: int, segments: Segments, blindspot: int, with_state: bool) -> int:
    """Tokens per chunk: a multiple of the blind spot, and not much more than the longest sequence."""
    longest = max(segments.lengths)
    if blindspot == 1:
        return min(wanted, 1 << (longest - 1).bit_length())
    if with_state:
        # One bucket a chunk: keys that are not seen yet then stand in a state of their own.
        return blindspot
    return blindspot * max(1, min(-(-wanted // blindspot), -(-longest // blindspot)))


def causal_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    chunk: int = 128,
    blindspot: int = 1,
    eps: float = 0.0,
    turn: Callable[[torch.Tensor], torch.Tensor] | None = None,
    past: Past | None = None,
) -> tuple[torch.Tensor, Past]:
    """Weights q_i . k_j over the keys that query i sees, divided by their sum; zero where nothing is seen.

    Parameters
    ----------
    q, k : torch.Tensor, shape (T, H, M)
        Non-negative features.
    v : torch.Tensor, shape (T, H, D)
    segments : Segments
    chunk : int
        Tokens per chunk; the result depends on it by rounding only.
    blindspot : int
        1: query i sees keys j <= i. B > 1: it sees keys of earlier buckets of B tokens only.
    eps : float
        Floor of the normaliser, relative to the mean feature.
    turn : callable or None
        Turns features (T, H, M) by their position; applied in the numerator only.
    past : Past or None
        What an earlier call returned, or ``Past()`` before the first token; None: no memory is kept.

    Returns
    -------
    out : torch.Tensor, shape (T, H, D)
    past : Past
        For the next call; empty where none was given.

    Notes
    -----
    Time O(T H (C + M) D), memory O(T H (C + M D / C)) for chunks of C tokens.

    References
    ----------
    Katharopoulos et al. 2020, equations 9 to 12; Hua et al. 2022, section 3.2 (chunks).
    """
    chunks = causal_chunks(segments, chunk_size(chunk, segments, blindspot, past is not None), blindspot > 1)
    q, k = q.to(v.dtype), k.to(v.dtype)
    # Autocast would take the sums, which are float32 on purpose, for the inputs of an ordinary product.
    with torch.autocast(v.device.type, enabled=False):
        rows_q, rows_k, rows_v = (to_chunks(x, chunks) for x in (q, k, v))
        turned = (rows_q, rows_k) if turn is None else tuple(to_chunks(turn(x), chunks) for x in (q, k))
        out, past = attend_chunks(Heads(rows_q, rows_k, rows_v, *turned), segments, chunks, blindspot, eps, past)
        return from_chunks(out, chunks), past


def attend_chunks(
    heads: Heads, segments: Segments, chunks: CausalChunks, blindspot: int, eps: float, past: Past | None
) -> tuple[torch.Tensor, Past]:
    """The same on rows of chunks, (H, N, C, *); what stands in rows that are no token is ignored."""
    q, k, v, turned_q, turned_k = heads
    same = turned_k is k
    if not chunks.is_view:
        k = k.masked_fill(chunks.absent, 0)
        turned_k = k if same else turned_k.masked_fill(chunks.absent, 0)
    wide = torch.promote_types(v.dtype, torch.float32)
    by_chunk = Sums(_product(turned_k.transpose(-1, -2), v), k.sum(-2, dtype=wide))
    seen, waiting = (None, None) if past is None else past
    if past is not None and blindspot > 1:
        seen, by_chunk, waiting = hold_last_bucket(by_chunk, seen, waiting, segments, chunks)
    start = Sums(None, None) if seen is None else seen  # type: ignore[arg-type]
    memory, memory_total = sums_before(by_chunk.memory, start.memory, segments, chunks, v.dtype)
    norm, norm_total = sums_before(by_chunk.norm, start.norm, segments, chunks, wide)
    mask = _seen(chunks.size, blindspot, segments, v.dtype)
    floor = _floor(q, k, norm, mask, eps) if eps else None
    after = Past() if past is None else Past(Sums(memory_total, norm_total), waiting)
    if same:
        flat = (x.flatten(0, 1) for x in (q, k, v, memory, norm))
        out = CausalProduct.apply(*flat, None if floor is None else floor.flatten(0, 1), mask)
        return out.view(v.shape), after
    value = _product(turned_q, memory)
    weight = _product(q.to(wide), norm[..., None])
    if mask is not None:
        value = value + _product(_product(turned_q, turned_k.transpose(-1, -2)) * mask, v)
        weight = weight + (_product(q, k.transpose(-1, -2)) * mask).sum(-1, keepdim=True, dtype=wide)
    weight = weight if floor is None else weight + floor
    return value / divisor(weight).to(value.dtype), after


def _floor(q: torch.Tensor, k: torch.Tensor, norm: torch.Tensor, mask: torch.Tensor | None, eps: float) -> torch.Tensor:
    """eps times the weight of queries and keys whose features all have their mean: (H, N, C, 1)."""
    mean = norm.mean(-1, keepdim=True)
    if mask is not None:
        mean = mean + torch.matmul(k.mean(-1, dtype=norm.dtype), mask.T.to(norm.dtype))
    return eps * q.sum(-1, keepdim=True, dtype=norm.dtype) * mean[..., None]


def hold_last_bucket(
    by_chunk: Sums, seen: Sums | None, waiting: Sums | None, segments: Segments, chunks: CausalChunks
) -> tuple[Sums | None, Sums, Sums]:
    """With one bucket a chunk: what waited joins its bucket, or what is seen; the last bucket waits in its turn.

    Returns
    -------
    seen : Sums or None
    by_chunk : Sums
        Without the last chunk of each sequence.
    waiting : Sums
        The last chunk of each sequence.
    """
    first, last = ends_of_chunks(segments, chunks)
    joined = Sums(*(x.to(torch.promote_types(x.dtype, torch.float32)) for x in by_chunk))
    if waiting is not None:
        assert seen is not None
        complete = bucket_is_complete(segments, chunks.size)
        seen = Sums(*(x + _where(complete, y) for x, y in zip(seen, waiting, strict=True)))
        joined = Sums(*(x.index_add(1, first, _where(~complete, y)) for x, y in zip(joined, waiting, strict=True)))
    held = Sums(*(x.index_select(1, last) for x in joined))
    return seen, Sums(*(x.index_fill(1, last, 0) for x in joined)), held


def _where(chosen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x (H, S, ...) of the sequences chosen (S,), zero elsewhere."""
    return x * chosen.view(-1, *[1] * (x.dim() - 2))


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(H, N, *, *) matrices."""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])


def _seen(size: int, blindspot: int, segments: Segments, dtype: torch.dtype) -> torch.Tensor | None:
    """Whether row a of a chunk sees row b, (C, C) of zeros and ones; None where no row sees any."""
    if size == blindspot > 1:
        return None

    def make() -> torch.Tensor:
        bucket = torch.arange(size, device=segments.device) // blindspot
        seen = bucket[:, None] >= bucket if blindspot == 1 else bucket[:, None] > bucket
        return seen.to(dtype)

    return segments.derive(("seen", size, blindspot, dtype), make)
