"""Clusters of similar sequences: from a table, from MMseqs2, or none; `minhash.py` has the built-in linkage."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.arrow import as_arrow, as_numpy, strings
from protlat.data.compression import ByteSource
from protlat.errors import ProtlatError, SequenceError

from .config import SplitConfig
from .dedup import id_buckets
from .documents import lines_of
from .spill import PieceNotes, Spill, n_buckets_for

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE_BATCH = 200_000
# MMseqs2 keeps its tables below this, so that prep as a whole stays under 1 GB.
_MMSEQS_MEMORY = "500M"

IdsOf = Callable[[int], "tuple[pa.StringArray, np.ndarray]"]


def choose_method(split: SplitConfig) -> str:
    """table, mmseqs, minhash or none, as asked or as available.

    Raises
    ------
    ProtlatError
        MMseqs2 was asked for by name and is not installed.
    """
    needed = split.valid_fraction > 0 or split.test_fraction > 0
    if split.clusters:
        return "table"
    if split.cluster_method == "mmseqs" and shutil.which("mmseqs") is None:
        raise ProtlatError(
            "--cluster-method mmseqs: the program mmseqs is not installed (Debian: apt install mmseqs2; conda: mmseqs2)"
        )
    if split.cluster_method != "auto":
        return split.cluster_method
    if not needed:
        return "none"
    return "mmseqs" if shutil.which("mmseqs") else "minhash"


def table_rows(path: str) -> Iterator[tuple[list[str], list[str]]]:
    """Batches of identifiers and clusters of a table.

    A first line that names the columns ``id`` and ``cluster`` decides their places; without one the columns are those
    of MMseqs2's ``_cluster.tsv``: cluster, member.

    Raises
    ------
    SequenceError
        The table cannot be read or a line has too few columns.
    """
    ids: list[str] = []
    clusters: list[str] = []
    id_column, cluster_column = 1, 0
    for number, line in lines_of(ByteSource(path).chunks(), path):
        cells = line.decode("utf-8", errors="replace").split("\t")
        if number == 1:
            names = [cell.strip().lower() for cell in cells]
            if "id" in names and "cluster" in names:
                id_column, cluster_column = names.index("id"), names.index("cluster")
                continue
        if not line.strip():
            continue
        if len(cells) <= max(id_column, cluster_column):
            raise SequenceError(
                f"{path}:{number}: expected at least {max(id_column, cluster_column) + 1} columns parted by tabs"
            )
        ids.append(cells[id_column].strip())
        clusters.append(cells[cluster_column].strip())
        if len(ids) >= _TABLE_BATCH:
            yield ids, clusters
            ids, clusters = [], []
    if ids:
        yield ids, clusters


def join_table(
    rows: Iterator[tuple[list[str], list[str]]],
    ids_of: IdsOf,
    n_pieces: int,
    n_rows: int,
    folder: Path,
    bucket_rows: int,
) -> tuple[PieceNotes, int]:
    """Clusters of records by identifier, in bounded memory.

    Parameters
    ----------
    rows : iterator
        Batches of identifiers and clusters; the first cluster of an identifier counts.
    ids_of : callable
        Identifiers and row numbers of a piece.
    n_pieces, n_rows, folder, bucket_rows
        As in `find_duplicates`.

    Returns
    -------
    tuple
        Notes with the column ``cluster``, and the number of records found in the table.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    n_buckets = n_buckets_for(n_rows, bucket_rows)
    table_schema = pa.schema([("id", pa.string()), ("cluster", pa.string())])
    table = Spill(folder / "table", table_schema, n_buckets)
    for ids, clusters in rows:
        batch = pa.RecordBatch.from_arrays([strings(ids), strings(clusters)], schema=table_schema)
        table.add(batch, id_buckets(batch.column("id"), n_buckets))
    record_schema = pa.schema([("id", pa.string()), ("piece", pa.int32()), ("row", pa.int32())])
    records = Spill(folder / "records", record_schema, n_buckets)
    for piece in range(n_pieces):
        names, numbers = ids_of(piece)
        columns = [names, as_arrow(np.full(len(names), piece, dtype=np.int32)), as_arrow(numbers.astype(np.int32))]
        records.add(pa.RecordBatch.from_arrays(columns, schema=record_schema), id_buckets(names, n_buckets))
    notes = PieceNotes(folder / "clusters", {"cluster": pa.string()}, n_pieces, n_buckets)
    table.close()
    n_found = 0
    for number, wanted in enumerate(records.tables()):
        known = table.bucket(number)
        if not wanted.num_rows or not known.num_rows:
            continue
        places = pc.index_in(wanted.column("id").combine_chunks(), known.column("id").combine_chunks())
        hit = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))
        if not len(hit):
            continue
        clusters = known.column("cluster").combine_chunks().take(places.take(as_arrow(hit)))
        n_found += len(hit)
        notes.add(
            as_numpy(wanted.column("piece"))[hit],
            as_numpy(wanted.column("row"))[hit],
            [clusters],
        )
    table.remove()
    records.remove()
    notes.close()
    return notes, n_found


def run_mmseqs(fasta: Path, folder: Path, split: SplitConfig, n_threads: int) -> Path:
    """Cluster a FASTA file by ``mmseqs easy-linclust``; returns its table of representative and member.

    Raises
    ------
    ProtlatError
        MMseqs2 stops with an error; its last lines are shown.
    """
    result = folder / "mmseqs"
    command = [
        "mmseqs", "easy-linclust", str(fasta), str(result), str(folder / "mmseqs-tmp"),
        "--dbtype", "1", "--min-seq-id", str(split.identity), "-c", str(split.coverage), "--cov-mode", "0", "--cluster-mode", "1", "--kmer-per-seq", "80",
        "--threads", str(n_threads), "--split-memory-limit", _MMSEQS_MEMORY, "-v", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = " / ".join((done.stderr + done.stdout).strip().splitlines()[-3:])
        raise ProtlatError(f"mmseqs easy-linclust stopped with code {done.returncode}: {tail}")
    shutil.rmtree(folder / "mmseqs-tmp", ignore_errors=True)
    return folder / "mmseqs_cluster.tsv"


def mmseqs_version() -> str:
    """Version that the installed MMseqs2 tells."""
    done = subprocess.run(["mmseqs", "version"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write_fasta(path: Path, rows: Iterator[tuple[list[str], np.ndarray, np.ndarray]], alphabet: Alphabet) -> int:
    """Write token rows as FASTA for MMseqs2.

    Parameters
    ----------
    path : Path
    rows : iterator
        Names, tokens end to end, and offsets.
    alphabet : Alphabet

    Returns
    -------
    int
        Sequences written.
    """
    letters = np.array([ord(token) if len(token) == 1 else ord("X") for token in alphabet.tokens], dtype=np.uint8)
    n_sequences = 0
    with open(path, "wb") as handle:
        for names, tokens, offsets in rows:
            text = letters[tokens].tobytes()
            ends = offsets.tolist()
            handle.writelines(
                b">%s\n%s\n" % (name.encode(), text[start:end])
                for name, start, end in zip(names, ends[:-1], ends[1:], strict=True)
            )
            n_sequences += len(names)
    return n_sequences
