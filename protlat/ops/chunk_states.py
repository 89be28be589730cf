"""Chunks of causal attention: rows of every chunk, and the sum of all chunks before each one."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch

from protlat.ops.segments import Segments


class CausalChunks(NamedTuple):
    """Every sequence cut into chunks of C rows, in order; no chunk holds tokens of two sequences.

    Attributes
    ----------
    rows : torch.Tensor, shape (N * C,), int64
        Packed position of each chunk row; rows that are no token repeat a token of their own sequence.
    inverse : torch.Tensor, shape (T,), int64
        Chunk row of each packed token.
    absent : torch.Tensor, shape (N, C, 1), bool
        True where the row is no token.
    segment : torch.Tensor, shape (N,), int64
        Sequence of each chunk.
    counts : tuple of int
        Chunks of each sequence.
    size : int
        C.
    is_view : bool
        True when the chunk rows are the packed order itself.
    """

    rows: torch.Tensor
    inverse: torch.Tensor
    absent: torch.Tensor
    segment: torch.Tensor
    counts: tuple[int, ...]
    size: int
    is_view: bool


def causal_chunks(segments: Segments, size: int, aligned: bool = False) -> CausalChunks:
    """Cut sequences into chunks of `size`; made once per batch.

    With `aligned`, chunks begin at multiples of `size` of the whole sequence, offset included, so that the first one
    may be short at its front.
    """
    return segments.derive(("causal", size, aligned), lambda: _make_chunks(segments, size, aligned))


def _make_chunks(segments: Segments, size: int, aligned: bool) -> CausalChunks:
    lengths = torch.tensor(segments.lengths)
    lead = torch.zeros_like(lengths)
    if aligned and segments.offsets is not None:
        lead = torch.tensor(segments.offsets) % size
    counts = (lengths + lead + size - 1) // size
    segment = torch.repeat_interleave(torch.arange(len(segments)), counts)
    number = torch.arange(len(segment)) - (counts.cumsum(0) - counts)[segment]
    place = (number * size - lead[segment])[:, None] + torch.arange(size)
    last = lengths[segment, None] - 1
    valid = (place >= 0) & (place <= last)
    starts = lengths.cumsum(0) - lengths
    rows = (starts[segment, None] + place.clamp_min(0).minimum(last)).flatten()
    inverse = valid.flatten().nonzero().flatten()
    is_view = bool(valid.all())
    rows, inverse, absent, segment = (x.to(segments.device) for x in (rows, inverse, ~valid[..., None], segment))
    return CausalChunks(rows, inverse, absent, segment, tuple(counts.tolist()), size, is_view)


def ends_of_chunks(segments: Segments, chunks: CausalChunks) -> tuple[torch.Tensor, torch.Tensor]:
    """First and last chunk of every sequence, (S,) int64 each."""

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        counts = torch.tensor(chunks.counts, device=segments.device)
        return counts.cumsum(0) - counts, counts.cumsum(0) - 1

    return segments.derive(("ends of chunks", chunks.size, chunks.counts), make)


def bucket_is_complete(segments: Segments, size: int) -> torch.Tensor:
    """Whether each sequence's next token begins a bucket, (S,) bool."""
    offsets = segments.offsets or (0,) * len(segments)
    return segments.derive(
        ("complete", size), lambda: torch.tensor([n % size == 0 for n in offsets], device=segments.device)
    )


class _Gather(torch.autograd.Function):
    """Rows of x (T, ...) by index, whose backward pass is a gather too: adding rows up one by one is slow."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return gradient.index_select(0, back), None, None


class _Drop(torch.autograd.Function):
    """The rows that are tokens; the gradient of all others is zero."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.n_rows = len(x)
        return x.index_select(0, kept)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.n_rows, *gradient.shape[1:]).index_copy_(0, kept, gradient), None


def to_chunks(x: torch.Tensor, chunks: CausalChunks) -> torch.Tensor:
    """(T, H, D) -> (H, N, C, D), contiguous.

    Gradients of rows that are no token are dropped: whoever uses them must not let them count.
    """
    if not chunks.is_view:
        x = _Gather.apply(x, chunks.rows, chunks.inverse)
    return x.view(-1, chunks.size, *x.shape[1:]).permute(2, 0, 1, 3).contiguous()


def from_chunks(rows: torch.Tensor, chunks: CausalChunks) -> torch.Tensor:
    """(H, N, C, D) -> (T, H, D), contiguous."""
    flat = rows.permute(1, 2, 0, 3).flatten(0, 1)
    return flat if chunks.is_view else _Drop.apply(flat, chunks.inverse)


class _Prefix(torch.autograd.Function):
    """Sums of what stands before each chunk, one chunk of every sequence at a time.

    ``torch.cumsum`` along an outer dimension is 25 times slower on CPU where measured.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, initial: torch.Tensor, steps: tuple[Any, ...], dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.steps, ctx.dtype = steps, x.dtype
        order, places = steps
        running = initial.index_select(1, order)
        before = x.new_empty(x.shape, dtype=dtype)
        for place in places:
            now = running if isinstance(place, slice) else running[:, : len(place)]
            _write(before, place, now)
            now += _read(x, place)
        return before, torch.empty_like(running).index_copy_(1, order, running)

    @staticmethod
    def backward(ctx: Any, before: torch.Tensor, after: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        order, places = ctx.steps
        running = after.index_select(1, order)
        gradient = before.new_empty(before.shape, dtype=ctx.dtype)
        for place in reversed(places):
            now = running if isinstance(place, slice) else running[:, : len(place)]
            _write(gradient, place, now)
            now += _read(before, place)
        return gradient, torch.empty_like(running).index_copy_(1, order, running), None, None


def _read(x: torch.Tensor, place: slice | torch.Tensor) -> torch.Tensor:
    return x[:, place] if isinstance(place, slice) else x.index_select(1, place)


def _write(x: torch.Tensor, place: slice | torch.Tensor, value: torch.Tensor) -> None:
    if isinstance(place, slice):
        x[:, place] = value
    else:
        x.index_copy_(1, place, value.to(x.dtype))


def chunk_steps(segments: Segments, chunks: CausalChunks) -> tuple[Any, ...]:
    """Sequences with most chunks first, and for every number of chunk the chunks that have it, in that order.

    As slices where all sequences have as many chunks.
    """

    def make() -> tuple[Any, ...]:
        counts = torch.tensor(chunks.counts)
        order = counts.argsort(descending=True, stable=True)
        if min(chunks.counts) == (n := max(chunks.counts)):
            # Strided views in place of copies.
            return order.to(segments.device), tuple(slice(i, None, n) for i in range(n))
        first = (counts.cumsum(0) - counts)[order]
        places = tuple((first[counts[order] > i] + i).to(segments.device) for i in range(max(chunks.counts)))
        return order.to(segments.device), places

    return segments.derive(("steps", chunks.counts), make)


def sums_before(
    x: torch.Tensor, initial: torch.Tensor | None, segments: Segments, chunks: CausalChunks, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """For every chunk the sum over the chunks of its sequence that stand before it.

    Parameters
    ----------
    x : torch.Tensor, shape (H, N, ...)
        Sum of each chunk.
    initial : torch.Tensor, shape (H, S, ...), or None
        What stands before the first chunk of each sequence, float32 or wider; None: nothing.
    segments : Segments
    chunks : CausalChunks
    dtype : torch.dtype
        Of the first result.

    Returns
    -------
    before : torch.Tensor, shape (H, N, ...)
    total : torch.Tensor, shape (H, S, ...), float32 or wider
        The sum over everything, `initial` included.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    if initial is None:
        initial = x.new_zeros(x.shape[0], len(segments), *x.shape[2:], dtype=wide)
    if x.device.type == "cpu":
        return _Prefix.apply(x, initial.to(wide), chunk_steps(segments, chunks), dtype)
    return _prefix_in_grid(x.to(wide), initial.to(wide), chunks, dtype)


def _prefix_in_grid(
    x: torch.Tensor, initial: torch.Tensor, chunks: CausalChunks, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in few calls, for devices where a call costs more than the additions."""
    n_chunks, longest = x.shape[1], max(chunks.counts)
    starts = torch.tensor([0, *accumulate(chunks.counts)][:-1], device=x.device)
    counts = torch.tensor(chunks.counts, device=x.device)
    number = torch.arange(longest, device=x.device)
    # Places beyond the last chunk of a sequence read a row of zeros.
    index = torch.where(number < counts[:, None], starts[:, None] + number, n_chunks)
    filled = torch.cat([x, torch.zeros_like(x[:, :1])], dim=1)
    grid = filled.index_select(1, index.flatten()).unflatten(1, index.shape)
    sums = torch.cat([initial[:, :, None], grid], dim=2).cumsum(2)
    cell = chunks.segment * (longest + 1) + torch.arange(n_chunks, device=x.device) - starts[chunks.segment]
    return sums.flatten(1, 2).index_select(1, cell).to(dtype), sums[:, :, -1]
