"""Global attention in linear time: keys and values are pooled once per sequence, then read by every query.

Two layouts of the same sums. `split` walks over the sequences (runs of equal length at once): fastest on CPU, where a
call costs microseconds. `chunked` cuts every sequence into chunks and adds up chunk sums: few calls, for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from protlat.ops.segments import ChunkTable, Segments

DEFAULT_CHUNK = 128
_ROUND_TO = 64
_ROUNDED_DTYPES = (torch.bfloat16,)
_SHORT_AT_ONCE = 16


def softmax_over_positions(
    k: torch.Tensor, segments: Segments, implementation: str, chunk: int = DEFAULT_CHUNK
) -> torch.Tensor:
    """Softmax of every channel over the positions of its own sequence, sums in float32 at least.

    Parameters
    ----------
    k : torch.Tensor, shape (T, H, M)
    segments : Segments
    implementation : str
        "split" or "chunked".
    chunk : int
        Chunk length of the chunked form; the result depends on it by rounding only.

    Returns
    -------
    torch.Tensor, shape (T, H, M), dtype of k
        Non-negative; sums to 1 over each sequence for every head and channel.
    """
    if implementation == "split":
        # Taken in float32 inside, whatever the dtype.
        return _joined([part.unflatten(0, run).softmax(1).flatten(0, 1) for part, run in _runs(k, segments)])
    table = segments.chunks(chunk)
    wide = _at_least_float32(k)
    rows = _to_chunks(wide, table).masked_fill(~table.valid[:, :, None, None], -torch.inf)
    # The greatest value cancels in the quotient, so that no gradient need flow through it.
    peak = _segment_max(rows.detach().amax(1), table, len(segments))
    features = (rows - peak[table.segment][:, None]).exp()
    total = _segment_sum(features.sum(1), table, len(segments))
    return _from_chunks(features / total[table.segment][:, None], table).to(k.dtype)


def pooled_attention(
    features_q: torch.Tensor,
    features_k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    implementation: str,
    chunk: int = DEFAULT_CHUNK,
) -> torch.Tensor:
    """features_q_i (sum over j of features_k_j v_j^T), the sum over i's own sequence.

    Parameters
    ----------
    features_q, features_k : torch.Tensor, shape (T, H, M)
    v : torch.Tensor, shape (T, H, D)
    segments : Segments
    implementation : str
        "split" or "chunked".
    chunk : int
        Chunk length of the chunked form.

    Returns
    -------
    torch.Tensor, shape (T, H, D), dtype of v

    Notes
    -----
    Time O(T H M D), memory O(S H M D) beside the result for S sequences. Products accumulate in float32; the chunked
    form also adds chunks up in float32.
    """
    features_q, features_k = features_q.to(v.dtype), features_k.to(v.dtype)
    if implementation == "split":
        return _pool_by_sequence(features_q, features_k, v, segments)
    table = segments.chunks(chunk)
    q_rows, k_rows, v_rows = (_to_chunks(x, table) for x in (features_q, features_k, v))
    # Rows beyond a sequence's end repeat a true row; zeroed keys keep them out of the sum.
    k_rows = k_rows.masked_fill(~table.valid[:, :, None, None], 0)
    # (N, H, M, C) @ (N, H, C, D)
    states = torch.matmul(k_rows.permute(0, 2, 3, 1), v_rows.permute(0, 2, 1, 3))
    state = _segment_sum(_at_least_float32(states), table, len(segments)).to(v.dtype)
    out = torch.matmul(q_rows.permute(0, 2, 1, 3), state[table.segment])
    return _from_chunks(out.permute(0, 2, 1, 3), table)


def segment_sum(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Sum over each sequence, in float32 at least: (T, ...) -> (S, ...)."""
    wide = _at_least_float32(x)
    if len(segments) == 1:
        return wide.sum(0, keepdim=True)
    return wide.new_zeros(len(segments), *x.shape[1:]).index_add(0, segments.ids, wide)


def segment_mean(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Mean over each sequence, in float32 at least: (T, ...) -> (S, ...)."""
    total = segment_sum(x, segments)
    lengths = torch.tensor(segments.lengths, dtype=total.dtype, device=total.device)
    return total / lengths.view(-1, *[1] * (total.dim() - 1))


def _pool_by_sequence(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments) -> torch.Tensor:
    lengths = segments.lengths
    table = None
    if v.dtype in _ROUNDED_DTYPES:
        # oneDNN, which multiplies bfloat16 on CPU, builds and keeps a program for every new shape, and sequences have
        # as many lengths as there are residues: mixed lengths cost a third of the speed and 30 MB a batch before
        # lengths were rounded up here. Keys of the added rows are zero.
        table = segments.rounded(_ROUND_TO)
        lengths = table.lengths
        if not table.is_view:
            q, k, v = (x[table.rows] for x in (q, k, v))
            k = k.index_fill(0, table.added, 0)
    sizes = _call_sizes(lengths)
    out = []
    for (n, length), *parts in zip(
        sizes, *(x.split([n * length for n, length in sizes]) for x in (q, k, v)), strict=True
    ):
        rows_q, rows_k, rows_v = (part.unflatten(0, (n, length)) if n > 1 else part for part in parts)
        # (..., H, M, L) @ (..., H, L, D), then (..., H, L, M) @ (..., H, M, D)
        state = torch.matmul(rows_k.transpose(-3, -2).transpose(-2, -1), rows_v.transpose(-3, -2))
        read = torch.matmul(rows_q.transpose(-3, -2), state).transpose(-3, -2)
        out.append(read.flatten(0, 1) if n > 1 else read)
    joined = _joined(out)
    return joined if table is None or table.is_view else joined[table.inverse]


def _call_sizes(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Sequences to multiply at once, as (how many, length): short ones of one length by 16, others one by one.

    One sequence needs no copy, since its heads are strided matrices; short ones are not worth a call each.
    """
    sizes: list[tuple[int, int]] = []
    for length, same in groupby(lengths):
        n = len(list(same))
        if length <= _ROUND_TO:
            sizes += [(_SHORT_AT_ONCE, length)] * (n // _SHORT_AT_ONCE)
            n %= _SHORT_AT_ONCE
        sizes += [(1, length)] * n
    return sizes


def _runs(x: torch.Tensor, segments: Segments) -> Iterator[tuple[torch.Tensor, tuple[int, int]]]:
    """Rows of every run of R neighbouring sequences of one length L, with (R, L)."""
    runs = segments.runs
    # Splitting at once, not slicing: the backward pass of a slice fills a tensor of the whole batch.
    return zip(x.split([n * length for n, length in runs]), runs, strict=True)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _to_chunks(x: torch.Tensor, table: ChunkTable) -> torch.Tensor:
    return x.view(*table.rows.shape, *x.shape[1:]) if table.is_view else x[table.rows]


def _from_chunks(rows: torch.Tensor, table: ChunkTable) -> torch.Tensor:
    flat = rows.flatten(0, 1)
    return flat if table.is_view else flat[table.inverse]


def _segment_sum(x: torch.Tensor, table: ChunkTable, n_segments: int) -> torch.Tensor:
    return x.new_zeros(n_segments, *x.shape[1:]).index_add(0, table.segment, x)


def _segment_max(x: torch.Tensor, table: ChunkTable, n_segments: int) -> torch.Tensor:
    index = table.segment.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return x.new_full((n_segments, *x.shape[1:]), -torch.inf).scatter_reduce(0, index, x, "amax")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _at_least_float32(x: torch.Tensor) -> torch.Tensor:
    return x.to(_wide(x.dtype))
