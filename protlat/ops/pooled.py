"""Global attention in linear time: keys and values are pooled once per sequence, then read by every query.

Two layouts of the same sums. `split` walks over the sequences (runs of equal length at once): fastest on CPU, where a
call costs microseconds. `chunked` cuts every sequence into chunks and adds up chunk sums: few calls, for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from protlat.ops.segments import ChunkTable, Segments

DEFAULT_CHUNK = 128


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
    torch.Tensor, shape (T, H, M), float32 (float64 for float64 keys)
        Non-negative; sums to 1 over each sequence for every head and channel.
    """
    if implementation == "split":
        return _by_runs(lambda rows: rows.softmax(1, dtype=_wide(k.dtype)), segments, k)
    table = segments.chunks(chunk)
    wide = _at_least_float32(k)
    rows = _to_chunks(wide, table).masked_fill(~table.valid[:, :, None, None], -torch.inf)
    # The greatest value cancels in the quotient, so that no gradient need flow through it.
    peak = _segment_max(rows.detach().amax(1), table, len(segments))
    features = (rows - peak[table.segment][:, None]).exp()
    total = _segment_sum(features.sum(1), table, len(segments))
    return _from_chunks(features / total[table.segment][:, None], table)


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
    Time O(T H M D), memory O(S H M D) beside the result for S sequences. The pooled state is float32 at least.

    The split form multiplies in float32 although bfloat16 products are faster: oneDNN, which does those, builds and keeps
    a program for every new shape, and sequences have as many lengths as there are residues (measured with mixed
    lengths: a third of the speed of inference lost, 30 MB more memory a batch).
    """
    if implementation == "split":
        wide = (_at_least_float32(x) for x in (features_q, features_k, v))
        with torch.autocast(v.device.type, enabled=False):
            return _by_runs(_pool_run, segments, *wide).to(v.dtype)
    table = segments.chunks(chunk)
    q_rows, k_rows, v_rows = (_to_chunks(x.to(v.dtype), table) for x in (features_q, features_k, v))
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


def _pool_run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    # (R, H, M, L) @ (R, H, L, D), then (R, H, L, M) @ (R, H, M, D)
    state = torch.matmul(k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3))
    return torch.matmul(q.permute(0, 2, 1, 3), state).permute(0, 2, 1, 3)


def _by_runs(function: Callable[..., torch.Tensor], segments: Segments, *tensors: torch.Tensor) -> torch.Tensor:
    """Apply a function of (R, L, ...) tensors to every run of R neighbouring sequences of one length L."""
    runs = segments.runs
    # Splitting at once, not slicing: the backward pass of a slice fills a tensor of the whole batch.
    pieces = zip(*(x.split([n * length for n, length in runs]) for x in tensors), strict=True)
    out = [
        function(*(part.unflatten(0, run) for part in parts)).flatten(0, 1)
        for parts, run in zip(pieces, runs, strict=True)
    ]
    return out[0] if len(out) == 1 else torch.cat(out)


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
