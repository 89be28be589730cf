"""What becomes of every row: kept or a duplicate, its cluster, its split."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.arrow import as_arrow, as_numpy, strings
from protlat.data.shards import SPLITS
from protlat.errors import SequenceError
from protlat.files import atomic_path

from .cluster_step import count_clusters, find_clusters, split_of_clusters
from .config import PrepConfig
from .dedup import find_duplicates, find_repeated_ids, hash_words
from .pieces import PieceInfo, one_line, piece_path, read_piece
from .sources import Source
from .spill import PieceNotes
from .windows import Windowing
from .write import Decision

if TYPE_CHECKING:
    import pyarrow as pa

# Test sequences must stay unseen, so of equal sequences the test one stays, then the valid one.
_RANKS = {"test": 0, "valid": 1, "": 2}
_RANK_NAMES = ("test", "valid", "train")
_CACHED = 4


class Decider:
    """Decides row by row, piece by piece, in bounded memory.

    Parameters
    ----------
    config : PrepConfig
    alphabet : Alphabet
    pieces : list of PieceInfo
        In input order.
    sources : list of Source
    work : Path
        Folder of the unfinished work.
    """

    def __init__(
        self, config: PrepConfig, alphabet: Alphabet, pieces: list[PieceInfo], sources: list[Source], work: Path
    ) -> None:
        self.config, self.alphabet, self.pieces, self.work = config, alphabet, pieces, work
        self.ranks = [_RANKS[sources[piece.source].split] for piece in pieces]
        self._paths = [source.path for source in sources]
        self.n_rows = sum(piece.n_rows for piece in pieces)
        self.n_duplicates = self.n_cross_duplicates = 0
        self.n_repeated_ids = self.n_repeated_ids_skipped = 0
        self.n_cut = self.n_windowed = 0
        self.cluster_facts: dict[str, Any] = {}
        self.warnings: list[str] = []
        self._duplicates: PieceNotes | None = None
        self._repeated: PieceNotes | None = None
        self._clusters: PieceNotes | None = None
        self.by_fraction = config.split.valid_fraction > 0 or config.split.test_fraction > 0
        self._cache: OrderedDict[int, Decision] = OrderedDict()

    def read(self, number: int) -> pa.RecordBatch:
        """Rows of a piece."""
        info = self.pieces[number]
        return read_piece(piece_path(self.work / "pieces", info.source, info.block))

    def prepare(self) -> None:
        """Look at all pieces: duplicates, repeated identifiers, clusters; count what will be left out."""
        scratch = self.work / "scratch"
        self._duplicates = find_duplicates(self.read, self.ranks, self.n_rows, scratch, self.config.bucket_rows)
        self._count_duplicates()
        self._repeated = find_repeated_ids(
            self._kept_ids, len(self.pieces), self.n_rows, scratch, self.config.bucket_rows
        )
        self._count_repeated()
        self._clusters, self.cluster_facts = find_clusters(self, self._kept_ids, self.config, self.alphabet, self.work)
        if self._clusters is not None:
            self.cluster_facts |= count_clusters(self, scratch, self.config)
        self._count_windows()

    def _dropped(self, number: int) -> np.ndarray:
        """Rows of a piece that leave as duplicates."""
        assert self._duplicates is not None
        return self._duplicates.of(number)[0] if self.config.duplicates == "drop" else np.zeros(0, dtype=np.int64)

    def _kept_ids(self, number: int) -> tuple[pa.StringArray, np.ndarray]:

        leaving = self._dropped(number)
        if self._repeated is not None and self.config.duplicate_ids == "skip":
            leaving = np.union1d(leaving, self._repeated.of(number)[0])
        ids = self.read(number).column("id")
        if not len(leaving):
            return ids, np.arange(len(ids))
        keep = np.ones(len(ids), dtype=bool)
        keep[leaving] = False
        rows = np.flatnonzero(keep)
        return ids.take(as_arrow(rows)), rows

    def _count_duplicates(self) -> None:
        assert self._duplicates is not None
        for number, rank in enumerate(self.ranks):
            _, (_, kept_ranks) = self._duplicates.of(number)
            n_cross = int(np.count_nonzero(as_numpy(kept_ranks) != rank))
            self.n_cross_duplicates += n_cross
            self.n_duplicates += len(kept_ranks) - n_cross

    def _count_repeated(self) -> None:
        assert self._repeated is not None
        for number in range(len(self.pieces)):
            rows, _ = self._repeated.of(number)
            self.n_repeated_ids += len(rows)
            if len(rows) and self.config.duplicate_ids == "error":
                batch, row = self.read(number), int(rows[0])
                name, line = batch.column("id")[row].as_py(), batch.column("line")[row].as_py()
                raise SequenceError(
                    f"{self.source_path(number)}:{line}: identifier {name} stands on an earlier record; --duplicate-ids keep or skip"
                )
        if self.config.duplicate_ids == "skip":
            self.n_repeated_ids_skipped = self.n_repeated_ids

    def _count_windows(self) -> None:
        windowing = Windowing.of(self.config)
        if windowing.size is None:
            return
        for number in range(len(self.pieces)):
            lengths = np.diff(as_numpy(self.read(number).column("tokens").offsets))
            n_long = int(np.count_nonzero((lengths > windowing.size) & (self.decide(number).split >= 0)))
            if windowing.start_only:
                self.n_cut += n_long
            else:
                self.n_windowed += n_long

    def decide(self, number: int) -> Decision:
        """Split and cluster of every row of a piece."""

        if number in self._cache:
            return self._cache[number]
        assert self._repeated is not None
        # Ranks count from the most protected split, SPLITS from train.
        split = np.full(self.pieces[number].n_rows, SPLITS.index(_RANK_NAMES[self.ranks[number]]), dtype=np.int8)
        clusters = None
        if self._clusters is not None or self.by_fraction:
            clusters = self._cluster_names(number)
        if self.by_fraction and self.ranks[number] == _RANKS[""]:
            assert clusters is not None
            split = split_of_clusters(clusters, hash_words(self.read(number).column("hash")), self.config)
        split[self._dropped(number)] = -1
        if self.config.duplicate_ids == "skip":
            split[self._repeated.of(number)[0]] = -1
        decision = Decision(split, strings(clusters.tolist()) if clusters is not None else None)
        self._cache[number] = decision
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return decision

    def _cluster_names(self, number: int) -> np.ndarray:
        """Cluster of each row, "" where none is known, shape (N,), str objects."""
        names = np.full(self.pieces[number].n_rows, "", dtype=object)
        if self._clusters is not None:
            rows, (clusters,) = self._clusters.of(number)
            names[rows] = clusters.to_pylist()
        return names

    def n_clusters(self, split: str) -> int:
        """Different clusters in a split, 0 where none are known."""
        return int(self.cluster_facts.get("n_by_split", {}).get(split, 0))

    def versions(self) -> dict[str, str]:
        """Packages that shaped the result."""
        import pyarrow as pa

        versions = {"numpy": np.__version__, "pyarrow": pa.__version__}
        if self.cluster_facts.get("method") == "mmseqs":
            versions["mmseqs"] = self.cluster_facts["version"]
        if self.cluster_facts.get("method") == "minhash":
            versions["datasketch"] = version("datasketch")
        return versions

    def skipped_rows(self) -> Iterator[str]:
        """Lines for skipped.tsv of rows left out after reading."""
        if self.config.duplicate_ids != "skip":
            return
        assert self._repeated is not None
        for number in range(len(self.pieces)):
            rows, _ = self._repeated.of(number)
            batch = self.read(number)
            for row in rows.tolist():
                name, line = batch.column("id")[row].as_py(), batch.column("line")[row].as_py()
                yield f"{self.source_path(number)}\t{line}\t{one_line(name)}\trepeated identifier\n"

    def source_path(self, number: int) -> str:
        """Path of the file that a piece came from."""
        return self._paths[self.pieces[number].source]

    def write_duplicates(self, path: Path) -> None:
        """One line for each row whose sequence stands elsewhere: its identifier, the kept one, and their splits."""
        assert self._duplicates is not None
        with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as handle:
            handle.write("file\tline\tidentifier\tkept_identifier\tsplit\tkept_split\n")
            for number, rank in enumerate(self.ranks):
                rows, (kept_ids, kept_ranks) = self._duplicates.of(number)
                if not len(rows):
                    continue
                batch = self.read(number)
                ids, lines = batch.column("id"), batch.column("line")
                for row, kept, kept_rank in zip(
                    rows.tolist(), kept_ids.to_pylist(), kept_ranks.to_pylist(), strict=True
                ):
                    handle.write(
                        f"{self.source_path(number)}\t{lines[row].as_py()}\t{one_line(ids[row].as_py())}\t{one_line(kept)}\t"
                        f"{_RANK_NAMES[rank]}\t{_RANK_NAMES[kept_rank]}\n"
                    )
