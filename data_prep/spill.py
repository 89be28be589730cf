"""Rows parted by key into buckets, in memory while they are few and on disk when they are many."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protlat.data.arrow import as_arrow, as_numpy

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BUCKETS = 256


def n_buckets_for(n_rows: int, bucket_rows: int) -> int:
    """Buckets that keep each near `bucket_rows`: a power of two up to 256."""
    n_buckets = 1
    while n_buckets < MAX_BUCKETS and n_rows > bucket_rows * n_buckets:
        n_buckets *= 2
    return n_buckets


class Spill:
    """Collects record batches by bucket.

    Parameters
    ----------
    folder : Path
        Where bucket files go; made anew.
    schema : pyarrow.Schema
    n_buckets : int
        One bucket stays in memory; more are files.
    """

    def __init__(self, folder: Path, schema: pa.Schema, n_buckets: int) -> None:
        self.folder, self.schema, self.n_buckets = folder, schema, n_buckets
        self._held: list[pa.RecordBatch] = []
        self._writers: dict[int, Any] = {}
        self._sinks: list[Any] = []
        shutil.rmtree(folder, ignore_errors=True)
        if n_buckets > 1:
            folder.mkdir(parents=True)

    def add(self, batch: pa.RecordBatch, buckets: np.ndarray) -> None:
        """Add rows; `buckets`, shape (N,), says where each belongs."""
        import pyarrow as pa

        if not batch.num_rows:
            return
        if self.n_buckets == 1:
            self._held.append(batch)
            return
        order = np.argsort(buckets, kind="stable")
        ends = np.concatenate(([0], np.cumsum(np.bincount(buckets, minlength=self.n_buckets))))
        sorted_batch = batch.take(as_arrow(order))
        for bucket in np.flatnonzero(np.diff(ends)).tolist():
            writer = self._writers.get(bucket)
            if writer is None:
                self._sinks.append(pa.OSFile(str(self._path(bucket)), "wb"))
                writer = pa.ipc.new_stream(self._sinks[-1], self.schema)
                self._writers[bucket] = writer
            writer.write_batch(sorted_batch.slice(int(ends[bucket]), int(ends[bucket + 1] - ends[bucket])))

    def _path(self, bucket: int) -> Path:
        return self.folder / f"{bucket:03d}.arrows"

    def close(self) -> None:
        """Finish writing; reading may begin."""
        for writer in self._writers.values():
            writer.close()
        # A writer leaves its file open, and hundreds of buckets would use up what a process may hold open.
        for sink in self._sinks:
            sink.close()
        self._sinks.clear()

    def bucket(self, number: int) -> pa.Table:
        """All rows of one bucket, in the order added."""
        import pyarrow as pa

        if self.n_buckets == 1:
            return pa.Table.from_batches(self._held, self.schema)
        if number not in self._writers:
            return self.schema.empty_table()
        with pa.OSFile(str(self._path(number)), "rb") as source:
            return pa.ipc.open_stream(source).read_all()

    def tables(self) -> Iterator[pa.Table]:
        """Bucket after bucket."""
        self.close()
        for number in range(self.n_buckets):
            yield self.bucket(number)

    def remove(self) -> None:
        """Free the memory and the disk."""
        self._held.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class PieceNotes:
    """Rows found by key, handed back by piece: the second half of an out-of-memory join.

    Parameters
    ----------
    folder : Path
    fields : dict
        Arrow type of each column beside `piece` and `row`.
    n_pieces, n_buckets : int
        Pieces are grouped into at most `n_buckets` runs.
    """

    def __init__(self, folder: Path, fields: dict[str, Any], n_pieces: int, n_buckets: int) -> None:
        import pyarrow as pa

        self.fields = list(fields)
        schema = pa.schema([("piece", pa.int32()), ("row", pa.int32()), *fields.items()])
        self._spill = Spill(folder, schema, min(n_buckets, max(n_pieces, 1)))
        self._per_bucket = -(-max(n_pieces, 1) // self._spill.n_buckets)
        self._open: int | None = None
        self._table: pa.Table | None = None
        self._pieces = np.zeros(0, dtype=np.int32)

    def add(self, pieces: np.ndarray, rows: np.ndarray, columns: list[pa.Array]) -> None:
        """Note something on rows of pieces."""
        import pyarrow as pa

        arrays = [as_arrow(pieces.astype(np.int32)), as_arrow(rows.astype(np.int32)), *columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._spill.schema)
        self._spill.add(batch, pieces // self._per_bucket)

    def close(self) -> None:
        self._spill.close()

    def of(self, piece: int) -> tuple[np.ndarray, list[pa.Array]]:
        """Rows of a piece that have a note, sorted, and the columns of the notes."""
        bucket = piece // self._per_bucket
        if self._open != bucket:
            table = self._spill.bucket(bucket).sort_by([("piece", "ascending"), ("row", "ascending")])
            self._table, self._open = table.combine_chunks(), bucket
            self._pieces = as_numpy(table.column("piece"))
        assert self._table is not None
        first, last = np.searchsorted(self._pieces, [piece, piece + 1]).tolist()
        part = self._table.slice(first, last - first)
        columns = []
        for name in self.fields:
            chunks = part.column(name).combine_chunks()
            columns.append(chunks)
        return as_numpy(part.column("row")).astype(np.int64), columns
