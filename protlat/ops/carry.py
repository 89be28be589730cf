"""Rows of earlier calls put before the rows of this one, for operations that look back a bounded number of tokens.

A memory is (S, R, ...): the last R rows of each sequence, the latest at the end, zeros in front where a sequence had
fewer. How many are true rows follows from the sequence's offset.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from protlat.ops.segments import Segments


class CarryTable(NamedTuple):
    """How remembered and new rows lie end to end.

    Attributes
    ----------
    source : torch.Tensor, shape (P,), int64
        Row of [memory (S * R), new (T)] at each place of the longer sequences.
    segments : Segments
        The longer sequences: what is remembered of each, then its new rows.
    new : torch.Tensor, shape (T,), int64
        Places of the new rows.
    last : torch.Tensor, shape (S, R), int64
        Places of the last R rows of each sequence.
    missing : torch.Tensor, shape (S, R), bool, or None
        Where there is no such row; None: nowhere.
    """

    source: torch.Tensor
    segments: Segments
    new: torch.Tensor
    last: torch.Tensor
    missing: torch.Tensor | None


def remembered(segments: Segments, size: int) -> tuple[int, ...]:
    """How many true rows a memory of `size` rows holds of each sequence."""
    return tuple(min(n, size) for n in segments.offsets or (0,) * len(segments))


def carry_table(segments: Segments, size: int) -> CarryTable:
    """Made once per batch for memories of `size` rows."""
    return segments.derive(("carry", size), lambda: _make_table(segments, size))


def _make_table(segments: Segments, size: int) -> CarryTable:
    kept, new = torch.tensor(remembered(segments, size)), torch.tensor(segments.lengths)
    whole = kept + new
    owner = torch.repeat_interleave(torch.arange(len(whole)), whole)
    starts = whole.cumsum(0) - whole
    row = torch.arange(len(owner)) - starts[owner] - kept[owner]
    new_starts = len(whole) * size + new.cumsum(0) - new
    source = torch.where(row < 0, (owner + 1) * size + row, new_starts[owner] + row)
    back = torch.arange(-size, 0)
    missing = back < -whole[:, None]
    last = (starts + whole)[:, None] + back.maximum(-whole[:, None])
    device = segments.device
    return CarryTable(
        source.to(device),
        Segments(whole.tolist(), device),
        (row >= 0).nonzero().flatten().to(device),
        last.to(device),
        missing.to(device) if bool(missing.any()) else None,
    )


def with_memory(x: torch.Tensor, memory: torch.Tensor | None, segments: Segments, size: int) -> torch.Tensor:
    """New rows x (T, ...) behind the remembered ones, as `carry_table` lays them: (P, ...)."""
    if memory is None:
        memory = x.new_zeros(len(segments), size, *x.shape[1:])
    return torch.cat([memory.flatten(0, 1).to(x.dtype), x]).index_select(0, carry_table(segments, size).source)


def last_rows(longer: torch.Tensor, segments: Segments, size: int) -> torch.Tensor:
    """The next memory (S, R, ...) from rows (P, ...) as `carry_table` lays them."""
    table = carry_table(segments, size)
    rows = longer[table.last]
    return rows if table.missing is None else rows.masked_fill(_like(table.missing, rows), 0)


def one_behind(x: torch.Tensor, memory: torch.Tensor | None, size: int) -> torch.Tensor:
    """One new row of each sequence x (S, ...) behind its memory: (S, R + 1, ...)."""
    if memory is None:
        memory = x.new_zeros(len(x), size, *x.shape[1:])
    return torch.cat([memory.to(x.dtype), x[:, None]], dim=1)


def step_mask(segments: Segments, size: int, dtype: torch.dtype) -> torch.Tensor | None:
    """What to add to the scores of one new row against `one_behind`'s rows, (S, 1, 1, R + 1); None where all are true."""
    kept = remembered(segments, size)
    if min(kept) == size:
        return None

    def make() -> torch.Tensor:
        absent = (
            torch.arange(size + 1, device=segments.device) < size - torch.tensor(kept, device=segments.device)[:, None]
        )
        mask = torch.zeros(absent.shape, dtype=dtype, device=segments.device).masked_fill_(absent, -torch.inf)
        return mask[:, None, None]

    return segments.derive(("step mask", size, dtype), make)


def _like(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return mask.view(*mask.shape, *[1] * (x.dim() - mask.dim()))
