"""Equal sequences and equal identifiers, found exactly in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protlat.data.arrow import as_arrow, as_numpy

from .spill import PieceNotes, Spill, n_buckets_for

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_BITS = 32  # a row number within a piece takes the low half of an index


def index_of(piece: int, n_rows: int) -> np.ndarray:
    """Global index of each row of a piece; it grows in input order, shape (N,), int64."""
    return (np.int64(piece) << _ROW_BITS) + np.arange(n_rows, dtype=np.int64)


def piece_and_row(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of `index_of`."""
    return index >> _ROW_BITS, index & ((1 << _ROW_BITS) - 1)


def hash_words(column: pa.FixedSizeBinaryArray) -> np.ndarray:
    """128-bit hashes as two words, shape (N, 2), uint64."""
    return np.frombuffer(column.buffers()[1], dtype=np.uint64).reshape(-1, 2)[column.offset :][: len(column)]


def find_duplicates(
    pieces: list[pa.RecordBatch] | Callable[[int], pa.RecordBatch],
    ranks: list[int],
    n_rows: int,
    folder: Path,
    bucket_rows: int,
) -> PieceNotes:
    """Rows whose sequence stands elsewhere too, with the identifier and rank of the row that is kept.

    Of equal rows the one with the lowest rank is kept, then the first in input order.

    Parameters
    ----------
    pieces : callable
        Gives the rows of a piece by number: columns ``hash`` and ``id``.
    ranks : list of int
        Rank of every piece: its split's order of preference.
    n_rows : int
        Rows of all pieces together.
    folder : Path
        For buckets on disk.
    bucket_rows : int
        Rows that are compared at once.

    Notes
    -----
    Time N log N; memory about 100 bytes a row of one bucket plus the identifiers.
    """
    import pyarrow as pa

    read = pieces if callable(pieces) else pieces.__getitem__
    n_buckets = n_buckets_for(n_rows, bucket_rows)
    schema = pa.schema(
        [("high", pa.uint64()), ("low", pa.uint64()), ("rank", pa.int8()), ("index", pa.int64()), ("id", pa.string())]
    )
    spill = Spill(folder / "hashes", schema, n_buckets)
    for number, rank in enumerate(ranks):
        batch = read(number)
        words = hash_words(batch.column("hash"))
        columns = [
            as_arrow(words[:, 0]),
            as_arrow(words[:, 1]),
            as_arrow(np.full(len(words), rank, dtype=np.int8)),
            as_arrow(index_of(number, len(words))),
            batch.column("id"),
        ]
        spill.add(
            pa.RecordBatch.from_arrays(columns, schema=schema), (words[:, 0] % np.uint64(n_buckets)).astype(np.int64)
        )
    fields = {"kept_id": pa.string(), "kept_rank": pa.int8()}
    notes = PieceNotes(folder / "duplicates", fields, len(ranks), n_buckets)
    for table in spill.tables():
        _note_duplicates(table, notes)
    spill.remove()
    notes.close()
    return notes


def _note_duplicates(table: pa.Table, notes: PieceNotes) -> None:
    import pyarrow as pa

    high = as_numpy(table.column("high"))
    order = np.argsort(high)
    sorted_high = high[order]
    equal = sorted_high[1:] == sorted_high[:-1]
    if not equal.any():
        return
    # Only rows that share their first word with another need the full comparison.
    shared = order[np.concatenate(([False], equal)) | np.concatenate((equal, [False]))]
    low = as_numpy(table.column("low"))[shared]
    rank = as_numpy(table.column("rank"))[shared]
    index = as_numpy(table.column("index"))[shared]
    full = np.lexsort((index, rank, low, high[shared]))
    shared, low, rank, index = shared[full], low[full], rank[full], index[full]
    first = np.concatenate(([True], (high[shared][1:] != high[shared][:-1]) | (low[1:] != low[:-1])))
    kept = np.flatnonzero(first)[np.cumsum(first) - 1]
    again = np.flatnonzero(~first)
    piece, row = piece_and_row(index[again])
    kept_ids = table.column("id").combine_chunks().take(as_arrow(shared[kept[again]]))
    if isinstance(kept_ids, pa.ChunkedArray):
        kept_ids = kept_ids.combine_chunks()
    notes.add(piece, row, [kept_ids, as_arrow(rank[kept[again]])])


def find_repeated_ids(
    read: Callable[[int], tuple[pa.StringArray, np.ndarray]], n_pieces: int, n_rows: int, folder: Path, bucket_rows: int
) -> PieceNotes:
    """Rows whose identifier stood on an earlier row.

    Parameters
    ----------
    read : callable
        Gives identifiers and their row numbers for a piece.
    n_pieces, n_rows, folder, bucket_rows
        As in `find_duplicates`.
    """
    import pyarrow as pa

    n_buckets = n_buckets_for(n_rows, bucket_rows)
    schema = pa.schema([("id", pa.string()), ("index", pa.int64())])
    spill = Spill(folder / "identifiers", schema, n_buckets)
    for number in range(n_pieces):
        ids, rows = read(number)
        index = (np.int64(number) << _ROW_BITS) + rows
        spill.add(pa.RecordBatch.from_arrays([ids, as_arrow(index)], schema=schema), id_buckets(ids, n_buckets))
    notes = PieceNotes(folder / "repeated", {}, n_pieces, n_buckets)
    for table in spill.tables():
        if not table.num_rows:
            continue
        codes = as_numpy(table.column("id").combine_chunks().dictionary_encode().indices)
        # Codes are given in order of first sight, so the first row of each code is where a new maximum stands.
        seen_before = np.concatenate(([-1], np.maximum.accumulate(codes)[:-1]))
        again = np.flatnonzero(codes <= seen_before)
        piece, row = piece_and_row(as_numpy(table.column("index"))[again])
        notes.add(piece, row, [])
    spill.remove()
    notes.close()
    return notes


def id_buckets(ids: pa.StringArray, n_buckets: int) -> np.ndarray:
    """Bucket of each identifier, shape (N,), int64; the same in every run."""
    if n_buckets == 1:
        return np.zeros(len(ids), dtype=np.int64)
    return np.fromiter((zlib.crc32(i.encode()) % n_buckets for i in ids.to_pylist()), dtype=np.int64, count=len(ids))
