"""The step that gives every kept record a cluster, and says how the clusters lie across splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.arrow import as_arrow, as_numpy, strings
from protlat.data.shards import SPLITS
from protlat.files import sha256_file
from protlat.reporting import progress

from . import minhash
from .clusters import IdsOf, choose_method, join_table, mmseqs_version, run_mmseqs, table_rows, write_fasta
from .config import PrepConfig
from .dedup import hash_words, id_buckets
from .spill import PieceNotes, Spill, n_buckets_for

if TYPE_CHECKING:
    import pyarrow as pa

    from .decisions import Decider


def find_clusters(
    decider: Decider, ids_of: IdsOf, config: PrepConfig, alphabet: Alphabet, work: Path
) -> tuple[PieceNotes | None, dict[str, Any]]:
    """Clusters of all kept rows by the method asked for.

    Returns
    -------
    tuple
        Notes with the column ``cluster`` (None without clusters), and the facts for the manifest.
    """
    split, n_pieces = config.split, len(decider.pieces)
    method = choose_method(split)
    if method == "none":
        return None, {"method": "none"}
    scratch = work / "scratch"
    if method == "table":
        assert split.clusters is not None
        notes, n_found = join_table(
            table_rows(split.clusters), ids_of, n_pieces, decider.n_rows, scratch, config.bucket_rows
        )
        facts = {
            "method": "table",
            "table": split.clusters,
            "sha256": sha256_file(split.clusters),
            "n_records_found": n_found,
        }
        n_kept = sum(len(ids_of(number)[1]) for number in range(n_pieces))
        if n_found < n_kept:
            decider.warnings.append(
                f"{split.clusters}: {n_kept - n_found:,} of {n_kept:,} records are not in it; each of them is a cluster of its own"
            )
        return notes, facts
    if method == "mmseqs":
        table = work / "mmseqs_cluster.tsv"
        if not table.exists():  # an earlier run may have made it
            write_fasta(scratch / "all.fasta", _fasta_rows(decider, ids_of), alphabet)
            run_mmseqs(scratch / "all.fasta", scratch, split, max(config.workers, 1)).replace(table)
            (scratch / "all.fasta").unlink()
        notes = _mmseqs_notes(table, n_pieces, decider.n_rows, config.bucket_rows, scratch)
        return notes, {
            "method": "mmseqs",
            "version": mmseqs_version(),
            "identity": split.identity,
            "coverage": split.coverage,
        }
    notes = _minhash_notes(decider, ids_of, config, scratch)
    return notes, {
        "method": "minhash",
        "k": minhash.K,
        "similarity": split.similarity,
        "estimated_identity": round(minhash.estimated_identity(split.similarity), 3),
    }


def _tokens_of(batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    column = batch.column("tokens")
    return as_numpy(column.values), as_numpy(column.offsets)


def _fasta_rows(decider: Decider, ids_of: IdsOf) -> Iterator[tuple[list[str], np.ndarray, np.ndarray]]:
    """Kept rows; the name leads back to piece and row, and holds the identifier for the cluster's name."""

    for number in range(len(decider.pieces)):
        ids, rows = ids_of(number)
        if not len(rows):
            continue
        names = [
            f"{number}_{row}_{'_'.join(name.split())[:200]}"
            for row, name in zip(rows.tolist(), ids.to_pylist(), strict=True)
        ]
        values, offsets = _tokens_of(decider.read(number).take(as_arrow(rows)))
        yield names, values, offsets


def _mmseqs_notes(table: Path, n_pieces: int, n_rows: int, bucket_rows: int, scratch: Path) -> PieceNotes:
    import pyarrow as pa

    fields = {"cluster": pa.string()}
    notes = PieceNotes(scratch / "clusters", fields, n_pieces, n_buckets_for(n_rows, bucket_rows))
    for members, representatives in table_rows(str(table)):
        places = np.array([member.split("_", 2)[:2] for member in members], dtype=np.int64)
        clusters = [representative.split("_", 2)[2] for representative in representatives]
        notes.add(places[:, 0], places[:, 1], [strings(clusters)])
    notes.close()
    return notes


def _minhash_notes(decider: Decider, ids_of: IdsOf, config: PrepConfig, scratch: Path) -> PieceNotes:
    import pyarrow as pa

    n_pieces = len(decider.pieces)
    kept = [ids_of(number)[1] for number in range(n_pieces)]
    n_kept = sum(len(rows) for rows in kept)
    words = np.zeros((n_kept, 2), dtype=np.uint64)

    with progress("cluster", float(n_kept), "sequences") as line:

        def sequences() -> Iterator[np.ndarray]:
            place = 0
            for number, rows in enumerate(kept):
                batch = decider.read(number)
                words[place : place + len(rows)] = hash_words(batch.column("hash"))[rows]
                place += len(rows)
                values, offsets = _tokens_of(batch)
                for row in rows.tolist():
                    yield values[offsets[row] : offsets[row + 1]]
                line.advance(len(rows))

        sketches = minhash.signatures(sequences(), n_kept)
    labels = minhash.link(sketches, config.split.similarity)
    # A cluster is named by its member with the lowest hash, whatever the order of the input.
    order = np.lexsort((words[:, 1], words[:, 0], labels))
    first = np.concatenate(([True], labels[order][1:] != labels[order][:-1]))
    leader = order[np.flatnonzero(first)][np.cumsum(first) - 1]
    names = np.empty(n_kept, dtype=object)
    names[order] = [f"{value:016x}" for value in words[leader, 0].byteswap().tolist()]
    fields = {"cluster": pa.string()}
    notes = PieceNotes(scratch / "clusters", fields, n_pieces, n_buckets_for(decider.n_rows, config.bucket_rows))
    place = 0
    for number, rows in enumerate(kept):
        part = names[place : place + len(rows)]
        notes.add(np.full(len(rows), number), rows, [strings(part.tolist())])
        place += len(rows)
    notes.close()
    return notes


def split_of_clusters(clusters: np.ndarray, words: np.ndarray, config: PrepConfig) -> np.ndarray:
    """Split of each row by the stable hash of its cluster, or of its sequence where it has none.

    Parameters
    ----------
    clusters : numpy.ndarray, shape (N,), str objects
    words : numpy.ndarray, shape (N, 2), uint64
        Hash of each sequence.
    config : PrepConfig

    Returns
    -------
    numpy.ndarray, shape (N,), int8
        Index into `SPLITS`.
    """
    names, inverse = np.unique(
        np.array(
            [name or f"\0{high:x}" for name, high in zip(clusters, words[:, 0].tolist(), strict=True)], dtype=object
        ),
        return_inverse=True,
    )
    test, valid = config.split.test_fraction, config.split.valid_fraction
    codes = np.zeros(len(names), dtype=np.int8)
    for index, name in enumerate(names.tolist()):
        digest = hashlib.blake2b(f"{config.split.seed}:{name}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        codes[index] = SPLITS.index("test" if place < test else "valid" if place < test + valid else "train")
    return codes[inverse]


def count_clusters(decider: Decider, scratch: Path, config: PrepConfig) -> dict[str, Any]:
    """Clusters of each split, and rows of valid and test whose cluster has rows in train too; memory is bounded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    n_buckets = n_buckets_for(decider.n_rows, config.bucket_rows)
    schema = pa.schema([("cluster", pa.string()), ("split", pa.int8())])
    spill = Spill(scratch / "cluster-counts", schema, n_buckets)
    for number in range(len(decider.pieces)):
        decision = decider.decide(number)
        if decision.clusters is None:
            continue
        kept = pa.array((decision.split >= 0) & (np.asarray(pc.utf8_length(decision.clusters)) > 0))
        batch = pa.RecordBatch.from_arrays([decision.clusters, as_arrow(decision.split)], schema=schema).filter(kept)
        spill.add(batch, id_buckets(batch.column("cluster"), n_buckets))
    n_by_split = dict.fromkeys(SPLITS, 0)
    shared = dict.fromkeys(SPLITS[1:], 0)
    for table in spill.tables():
        splits = as_numpy(table.column("split"))
        names = table.column("cluster").combine_chunks()
        in_train = pc.unique(names.filter(pa.array(splits == 0)))
        n_by_split["train"] += len(in_train)
        for code, split in enumerate(SPLITS[1:], start=1):
            part = names.filter(pa.array(splits == code))
            n_by_split[split] += len(pc.unique(part))
            shared[split] += pc.sum(pc.is_in(part, value_set=in_train)).as_py() or 0
    spill.remove()
    return {"n_by_split": n_by_split, "rows_sharing_a_cluster_with_train": shared}
