"""How records become rows: whole, cut to a length, or as windows that overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .config import PrepConfig

_CHUNK_TOKENS = 1 << 22  # index arrays take 8 bytes a token


@dataclass(frozen=True)
class Windowing:
    """The rule that turns record lengths into rows.

    Attributes
    ----------
    size : int or None
        Longest row in tokens; None leaves records whole.
    overlap : int
        Tokens that neighbouring windows share.
    padded : bool
        Pad every row to `size`.
    start_only : bool
        Keep only the first window.
    """

    size: int | None = None
    overlap: int = 0
    padded: bool = False
    start_only: bool = False

    @staticmethod
    def of(config: PrepConfig) -> Windowing:
        if config.fixed_length is not None:
            return Windowing(config.fixed_length, config.overlap, padded=True)
        if config.max_length is not None and config.long in ("window", "cut"):
            return Windowing(config.max_length, config.overlap, start_only=config.long == "cut")
        return Windowing()

    def rows_of(self, lengths: np.ndarray) -> np.ndarray:
        """Rows that each record becomes, shape (N,), int64.

        Windows begin every ``size - overlap`` tokens until one reaches the end, so that no window lies within another.
        """
        if self.size is None or self.start_only:
            return np.ones(len(lengths), dtype=np.int64)
        stride = self.size - self.overlap
        return 1 + np.maximum(-(-(lengths - self.size) // stride), 0)

    def stored_tokens(self, lengths: np.ndarray) -> np.ndarray:
        """Tokens that each record takes in a shard, padding included, shape (N,), int64."""
        if self.size is None:
            return lengths
        if self.padded:
            return self.rows_of(lengths) * self.size
        if self.start_only:
            return np.minimum(lengths, self.size)
        return lengths + (self.rows_of(lengths) - 1) * self.overlap

    def layout(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Record number, first token and true length of every row, each shape (R,), int64."""
        counts = self.rows_of(lengths)
        record = np.repeat(np.arange(len(lengths)), counts)
        if self.size is None:
            return record, np.zeros(len(record), dtype=np.int64), lengths
        number = np.arange(len(record)) - np.repeat(np.cumsum(counts) - counts, counts)
        start = number * (self.size - self.overlap)
        return record, start, np.minimum(lengths[record] - start, self.size)

    def gather(
        self, values: np.ndarray, starts: np.ndarray, lengths: np.ndarray, pad_id: int
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Tokens of rows, in chunks of bounded memory.

        Parameters
        ----------
        values : numpy.ndarray, shape (T,)
            Tokens of many records.
        starts, lengths : numpy.ndarray, shape (R,)
            Place in `values` and true length of each row.
        pad_id : int

        Yields
        ------
        tuple
            Rows of the chunk, their tokens end to end, and their offsets, int32.
        """
        width = np.full(len(lengths), self.size) if self.padded else lengths
        ends = np.cumsum(width)
        first = 0
        while first < len(lengths):
            before = int(ends[first - 1]) if first else 0
            last = max(int(np.searchsorted(ends, before + _CHUNK_TOKENS, side="right")), first + 1)
            rows = slice(first, last)
            offsets = np.concatenate(([0], np.cumsum(width[rows])))
            place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], width[rows])
            inside = place < np.repeat(lengths[rows], width[rows])
            index = np.where(inside, place + np.repeat(starts[rows], width[rows]), 0)
            yield rows, np.where(inside, values[index], np.asarray(pad_id, values.dtype)), offsets.astype(np.int32)
            first = last
