"""Pieces and decisions to shards: plan first, so that every shard can be made, or kept from an earlier run, by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.arrow import as_arrow, as_numpy, empty_strings, strings
from protlat.data.shards import SPLITS, ShardInfo, SplitInfo, shard_schema, write_shard
from protlat.files import sha256_file, write_json

from .pieces import PieceInfo, piece_path, read_piece
from .windows import Windowing

if TYPE_CHECKING:
    import pyarrow as pa

# Upper bounds of the length histogram, in tokens.
LENGTH_BOUNDS = (50, 100, 200, 300, 400, 500, 750, 1000, 1500, 2000, 5000, 10_000, 50_000, 100_000, 1_000_000, 1 << 62)


@dataclass(frozen=True)
class Decision:
    """What becomes of a piece's rows.

    Attributes
    ----------
    split : numpy.ndarray, shape (N,), int8
        Index into `SPLITS`; -1 leaves the row out.
    clusters : pyarrow.StringArray or None
    """

    split: np.ndarray
    clusters: pa.StringArray | None


@dataclass(frozen=True)
class Part:
    """Rows `start` to `end` of those that one piece gives to one split."""

    piece: int
    start: int
    end: int


@dataclass
class _Tally:
    """Counts of a split while it is planned."""

    n_rows: int = 0
    n_tokens: int = 0
    min_length: int = 0
    max_length: int = 0
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(len(LENGTH_BOUNDS), dtype=np.int64))
    tags: Counter[str] = field(default_factory=Counter)

    def add(self, lengths: np.ndarray, tags: dict[str, int]) -> None:
        if not len(lengths):
            return
        self.n_rows += len(lengths)
        self.n_tokens += int(lengths.sum())
        shortest = int(lengths.min())
        self.min_length = min(self.min_length, shortest) if self.min_length else shortest
        self.max_length = max(self.max_length, int(lengths.max()))
        self.histogram += np.bincount(
            np.searchsorted(LENGTH_BOUNDS, lengths, side="right"), minlength=len(LENGTH_BOUNDS)
        )
        self.tags.update(tags)


class ShardPlan:
    """Which rows of which pieces make each shard.

    Parameters
    ----------
    pieces : list of PieceInfo
        In input order.
    decide : callable
        Gives the `Decision` of a piece by its number.
    folder : Path
        Where the pieces lie.
    windowing : Windowing
    shard_tokens : int
        Stored tokens after which a shard is closed.
    """

    def __init__(
        self,
        pieces: list[PieceInfo],
        decide: Callable[[int], Decision],
        folder: Path,
        windowing: Windowing,
        shard_tokens: int,
    ) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.pieces, self.decide, self.folder, self.windowing = pieces, decide, folder, windowing
        self.shards: dict[str, list[list[Part]]] = {split: [] for split in SPLITS}
        self.tallies = {split: _Tally() for split in SPLITS}
        room = dict.fromkeys(SPLITS, 0)
        for number in range(len(pieces)):
            batch, decision = self.rows(number), decide(number)
            lengths = np.diff(as_numpy(batch.column("tokens").offsets)).astype(np.int64)
            for code, split in enumerate(SPLITS):
                chosen = np.flatnonzero(decision.split == code)
                if not len(chosen):
                    continue
                record, _, row_lengths = windowing.layout(lengths[chosen])
                tags = pc.value_counts(batch.column("tag").take(_as_indices(chosen[record])))
                self.tallies[split].add(row_lengths, dict(zip(*map(pa.Array.to_pylist, tags.flatten()), strict=True)))
                room[split] = self._deal(
                    split, number, windowing.stored_tokens(lengths[chosen]), room[split], shard_tokens
                )

    def _deal(self, split: str, number: int, stored: np.ndarray, room: int, shard_tokens: int) -> int:
        """Append rows to the open shard, opening new ones as they fill; returns the room left in the last."""
        ends = np.cumsum(stored)
        start = 0
        while start < len(stored):
            if room <= 0:
                self.shards[split].append([])
                room = shard_tokens
            before = int(ends[start - 1]) if start else 0
            # A shard takes every record that begins within its room.
            end = min(int(np.searchsorted(ends, before + room, side="left")) + 1, len(stored))
            self.shards[split][-1].append(Part(number, start, end))
            room -= int(ends[end - 1]) - before
            start = end
        return room

    def rows(self, number: int) -> pa.RecordBatch:
        info = self.pieces[number]
        return read_piece(piece_path(self.folder, info.source, info.block))


def _as_indices(rows: np.ndarray) -> pa.Array:

    return as_arrow(np.asarray(rows, dtype=np.int64))


class ShardMaker:
    """Writes the shards of a plan.

    Parameters
    ----------
    plan : ShardPlan
    output : Path
        The shard folder.
    journal : Path
        Folder of marks of finished shards.
    alphabet : Alphabet
    tags : list of str
        Dictionary of the tag column.
    """

    def __init__(self, plan: ShardPlan, output: Path, journal: Path, alphabet: Alphabet, tags: list[str]) -> None:

        self.plan, self.output, self.journal = plan, output, journal
        self.alphabet = alphabet
        self.schema = shard_schema(alphabet.dtype)
        self._tags = strings(tags)

    def make(self, split: str, number: int) -> ShardInfo:
        """Write one shard, or take it as it is when an earlier run finished it."""
        name = f"{split}/shard-{number:05d}.arrow"
        path, mark = self.output / name, self.journal / f"{split}-{number:05d}.json"
        if mark.exists() and path.exists():
            info = ShardInfo.parse(json.loads(mark.read_text()), str(mark))
            if path.stat().st_size == info.size_bytes and sha256_file(path) == info.sha256:
                return info
        n_sequences, n_tokens = write_shard(path, self.schema, self._batches(split, number))
        info = ShardInfo(
            file=name,
            n_sequences=n_sequences,
            n_tokens=n_tokens,
            size_bytes=path.stat().st_size,
            sha256=sha256_file(path),
        )
        write_json(mark, info.to_plain())
        return info

    def _batches(self, split: str, number: int) -> Iterator[pa.RecordBatch]:
        for part in self.plan.shards[split][number]:
            decision = self.plan.decide(part.piece)
            chosen = np.flatnonzero(decision.split == SPLITS.index(split))[part.start : part.end]
            yield from self._rows(part.piece, chosen, decision)

    def _rows(self, piece: int, chosen: np.ndarray, decision: Decision) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        batch = self.plan.rows(piece)
        if int(chosen[-1]) - int(chosen[0]) + 1 == len(chosen):
            batch = batch.slice(int(chosen[0]), len(chosen))
        else:
            batch = batch.take(_as_indices(chosen))
        clusters = decision.clusters.take(_as_indices(chosen)) if decision.clusters is not None else None
        tokens = batch.column("tokens")
        offsets = as_numpy(tokens.offsets).astype(np.int64)
        windowing = self.plan.windowing
        record, start, length = windowing.layout(np.diff(offsets))
        if windowing.size is None:
            yield self._build(batch, clusters, piece, start, length, tokens)
            return
        values = as_numpy(tokens.values)
        for rows, ids, row_offsets in windowing.gather(values, offsets[record] + start, length, self.alphabet.pad_id):
            owner = _as_indices(record[rows])
            part = pa.ListArray.from_arrays(as_arrow(row_offsets), as_arrow(ids))
            inner = batch.drop_columns(["tokens"]).take(owner)
            yield self._build(inner, clusters.take(owner) if clusters else None, piece, start[rows], length[rows], part)

    def _build(
        self,
        batch: pa.RecordBatch,
        clusters: pa.StringArray | None,
        piece: int,
        start: np.ndarray,
        length: np.ndarray,
        tokens: pa.ListArray,
    ) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        n_rows = batch.num_rows
        codes = pc.index_in(batch.column("tag"), value_set=self._tags).cast(pa.int16())
        columns = [
            batch.column("id"),
            batch.column("header"),
            pa.DictionaryArray.from_arrays(codes, self._tags),
            clusters if clusters is not None else empty_strings(n_rows),
            as_arrow(np.full(n_rows, self.plan.pieces[piece].source, dtype=np.int32)),
            batch.column("line"),
            as_arrow(start.astype(np.int32)),
            as_arrow(length.astype(np.int32)),
            pa.ListArray.from_arrays(_based_offsets(tokens), _based_values(tokens)).cast(
                self.schema.field("tokens").type
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _based_offsets(tokens: pa.ListArray) -> pa.Array:

    return as_arrow(as_numpy(tokens.offsets) - tokens.offsets[0].as_py())


def _based_values(tokens: pa.ListArray) -> pa.Array:
    first, last = tokens.offsets[0].as_py(), tokens.offsets[len(tokens)].as_py()
    return tokens.values.slice(first, last - first)


def split_info(tally: _Tally, shards: list[ShardInfo], n_clusters: int) -> SplitInfo:
    """The manifest's account of one split."""
    histogram = tuple((bound, int(count)) for bound, count in zip(LENGTH_BOUNDS, tally.histogram, strict=True) if count)
    return SplitInfo(
        n_sequences=tally.n_rows,
        n_tokens=tally.n_tokens,
        min_length=tally.min_length,
        max_length=tally.max_length,
        length_histogram=histogram,
        tags=dict(sorted(tally.tags.items())),
        n_clusters=n_clusters,
        shards=tuple(shards),
    )
