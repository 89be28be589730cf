"""Rows of a packed batch as a few batched matrices, for products that differ from sequence to sequence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch

from protlat.ops.segments import RoundedTable, Segments

_ROUND_TO = 64
_SHORT_AT_ONCE = 16


class SequenceBatches(NamedTuple):
    """Neighbouring sequences of one length, multiplied at once.

    Attributes
    ----------
    sizes : tuple of (int, int)
        How many sequences, and their length; together all sequences in packed order.
    table : RoundedTable or None
        The longer sequences that `sizes` speaks of, where lengths were rounded up.
    """

    sizes: tuple[tuple[int, int], ...]
    table: RoundedTable | None

    @property
    def counts(self) -> list[int]:
        """Sequences of each batch."""
        return [n for n, _ in self.sizes]

    def split(self, x: torch.Tensor, zero_added: bool = False) -> list[torch.Tensor]:
        """(T, ...) -> one (n, L, ...) for each batch.

        Parameters
        ----------
        x : torch.Tensor, shape (T, ...)
        zero_added : bool
            Whether added rows are zero; else they repeat a token.
        """
        if self.table is not None:
            x = x[self.table.rows]
            if zero_added:
                x = x.index_fill(0, self.table.added, 0)
        # Splitting at once, not slicing: the backward pass of a slice fills a tensor of the whole batch.
        parts = x.split([n * length for n, length in self.sizes])
        return [part.unflatten(0, size) for part, size in zip(parts, self.sizes, strict=True)]

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Inverse of `split`, without the added rows."""
        flat = [part.flatten(0, 1) for part in parts]
        x = flat[0] if len(flat) == 1 else torch.cat(flat)
        return x if self.table is None else x[self.table.inverse]


def sequence_batches(segments: Segments, dtype: torch.dtype) -> SequenceBatches:
    """How to walk over the sequences, made once per batch.

    On CPU, short sequences of one length go 16 at a time and others alone, since a single sequence needs no copy: its
    heads are strided matrices. Elsewhere a call costs more than a copy, and all neighbours of one length go together.
    In bfloat16 on CPU, lengths are rounded up (see `protlat.models.transformer.round_up`).
    """
    on_cpu = segments.device.type == "cpu"
    rounds = on_cpu and dtype == torch.bfloat16

    def make() -> SequenceBatches:
        table = segments.rounded(_ROUND_TO) if rounds and not segments.is_step else None
        lengths = segments.lengths if table is None else table.lengths
        sizes: list[tuple[int, int]] = []
        for length, same in groupby(lengths):
            n = len(list(same))
            sizes += _calls(n, length) if on_cpu and not segments.is_step else [(n, length)]
        return SequenceBatches(tuple(sizes), None if table is None or table.is_view else table)

    return segments.derive(("by sequence", rounds), make)


def _calls(n: int, length: int) -> list[tuple[int, int]]:
    if length > _ROUND_TO:
        return [(1, length)] * n
    return [(_SHORT_AT_ONCE, length)] * (n // _SHORT_AT_ONCE) + [(1, length)] * (n % _SHORT_AT_ONCE)
