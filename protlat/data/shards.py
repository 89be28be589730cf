"""The shard folder: Arrow IPC files under ``train/``, ``valid/`` and ``test/``, and a manifest. This file alone defines it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from protlat.alphabet import Alphabet
from protlat.config import Config
from protlat.data.arrow import as_numpy
from protlat.errors import ConfigError, ShardError
from protlat.files import atomic_path, sha256_file

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_NAME = "protlat-shards"
FORMAT_VERSION = 1
SPLITS = ("train", "valid", "test")
MANIFEST_NAME = "manifest.json"
MAX_TAGS = 32_767  # codes are int16


class ShardInfo(Config):
    """One Arrow file."""

    file: str
    """Path below the folder."""
    n_sequences: int
    """Rows."""
    n_tokens: int
    """True tokens, padding not counted."""
    size_bytes: int
    """Size of the file."""
    sha256: str
    """Checksum of the file."""


class SplitInfo(Config):
    """One split."""

    n_sequences: int
    """Rows: sequences, or windows in the fixed-length form."""
    n_tokens: int
    """True tokens, padding not counted."""
    min_length: int = 0
    """Shortest row in tokens."""
    max_length: int = 0
    """Longest row in tokens."""
    length_histogram: tuple[tuple[int, int], ...] = ()
    """Pairs of a length bound and the number of rows shorter than it and not below the bound before."""
    tags: dict[str, int] = Field(default_factory=dict)
    """Rows of each tag."""
    n_clusters: int = 0
    """Different clusters, 0 where none are known."""
    shards: tuple[ShardInfo, ...] = ()
    """Files in order."""


class SourceInfo(Config):
    """One input file; rows point at it by its index."""

    path: str
    """As given."""
    format: str
    """fasta, swissprot, genbank, embl, text or jsonl."""
    compression: str
    """gzip, bzip2, xz, zstd or none."""
    split: str
    """Split asked for, "" where it follows the clusters."""
    size_bytes: int
    """Size as stored."""
    sha256: str
    """Checksum of the file as stored."""
    n_records: int
    """Records read."""


class Manifest(Config):
    """What a shard folder holds and how it was made."""

    format: str = FORMAT_NAME
    """Marks the file."""
    version: int = FORMAT_VERSION
    """Version of the layout."""
    protlat_version: str
    """Version that wrote the folder."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Packages and programs that took part."""
    alphabet: dict[str, Any]
    """See `Alphabet.to_plain`."""
    fixed_length: int | None = None
    """Row length in tokens of the fixed-length form, None for variable length."""
    overlap: int = 0
    """Tokens that neighbouring windows share, in the fixed-length form."""
    tags: tuple[str, ...]
    """Every tag; the codes of the rows point here."""
    splits: dict[str, SplitInfo]
    """Counts and files by split."""
    sources: tuple[SourceInfo, ...]
    """Input files."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Settings of prep."""
    account: dict[str, Any] = Field(default_factory=dict)
    """Records and residues in, kept, changed and left out."""
    clusters: dict[str, Any] = Field(default_factory=dict)
    """How clusters were found."""
    leaks: dict[str, Any] = Field(default_factory=dict)
    """Near neighbours across splits."""
    warnings: tuple[str, ...] = ()
    """What the user should look at."""


def shard_schema(dtype: np.dtype) -> pa.Schema:
    """Columns of a shard; `dtype` is the alphabet's."""
    import pyarrow as pa

    token = pa.uint8() if dtype == np.uint8 else pa.uint16()
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("header", pa.string(), nullable=False),
            pa.field("tag", pa.dictionary(pa.int16(), pa.string()), nullable=False),
            pa.field("cluster", pa.string(), nullable=False),
            pa.field("source_file", pa.int32(), nullable=False),
            pa.field("source_line", pa.int64(), nullable=False),
            pa.field("window_start", pa.int32(), nullable=False),
            pa.field("length", pa.int32(), nullable=False),
            pa.field("tokens", pa.list_(pa.field("item", token, nullable=False)), nullable=False),
        ]
    )


def write_shard(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Write one Arrow file atomically.

    Returns
    -------
    tuple of int
        Rows and true tokens.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    n_sequences = n_tokens = 0
    with (
        atomic_path(path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            n_sequences += batch.num_rows
            n_tokens += pc.sum(batch.column("length")).as_py() or 0
    return n_sequences, n_tokens


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a finished shard folder.

    Raises
    ------
    ShardError
        The folder or its manifest is missing, unfinished, damaged, or of another version.
    """
    path = Path(folder) / MANIFEST_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not Path(folder).is_dir():
            raise ShardError(f"{folder}: no such shard folder") from None
        hint = (
            "prep was stopped; run the same command again"
            if (Path(folder) / ".prep").exists()
            else "make one with protlat prep"
        )
        raise ShardError(f"{folder}: not a finished shard folder: it has no {MANIFEST_NAME} ({hint})") from None
    except (OSError, ValueError) as error:
        raise ShardError(f"{path}: cannot be read: {error}") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT_NAME:
        raise ShardError(f"{path}: not a manifest of protlat shards")
    if values.get("version") != FORMAT_VERSION:
        raise ShardError(f"{path}: layout version {values.get('version')}, this protlat reads {FORMAT_VERSION}")
    try:
        return Manifest.parse(values, str(path))
    except ConfigError as error:
        raise ShardError(str(error)) from None


class ShardReader:
    """Random access to one split by global row number; files are memory-mapped.

    Parameters
    ----------
    folder : str or Path
    split : str
        "train", "valid" or "test".
    verify : bool
        Compare every file's checksum with the manifest first (reads everything).

    Raises
    ------
    ShardError
        The folder is not finished, has no such split, or a file is missing, short or damaged.

    Notes
    -----
    Can be pickled: the files are opened again in the other process.
    """

    def __init__(self, folder: str | Path, split: str, verify: bool = False) -> None:

        self.folder, self.split = Path(folder), split
        self.manifest = read_manifest(folder)
        if split not in self.manifest.splits:
            raise ShardError(f"{folder}: no split {split!r}; it has {', '.join(self.manifest.splits) or 'none'}")
        self.info = self.manifest.splits[split]
        self.fixed_length = self.manifest.fixed_length
        self._batches: list[pa.RecordBatch] = []
        for shard in self.info.shards:
            self._open(shard, verify)
        self._starts = np.cumsum([0] + [batch.num_rows for batch in self._batches])
        if int(self._starts[-1]) != self.info.n_sequences:
            raise ShardError(
                f"{folder}: {split} has {self._starts[-1]} rows, the manifest says {self.info.n_sequences}"
            )
        self._views: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(self._batches)

    def _open(self, shard: ShardInfo, verify: bool) -> None:
        import pyarrow as pa

        path = self.folder / shard.file
        try:
            size = path.stat().st_size
        except OSError:
            raise ShardError(f"{path}: missing; the manifest lists it") from None
        if size != shard.size_bytes:
            raise ShardError(f"{path}: {size:,} bytes, the manifest says {shard.size_bytes:,}; the file is damaged")
        if verify and sha256_file(path) != shard.sha256:
            raise ShardError(f"{path}: its checksum differs from the manifest; the file is damaged")
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            self._batches += [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except pa.ArrowInvalid as error:
            raise ShardError(f"{path}: not a readable Arrow file: {error}") from None

    def __reduce__(self) -> tuple[type[ShardReader], tuple[Path, str]]:
        return ShardReader, (self.folder, self.split)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _locate(self, index: int) -> tuple[int, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        index = int(index) % len(self)
        batch = int(np.searchsorted(self._starts, index, side="right")) - 1
        return batch, index - int(self._starts[batch])

    def tokens(self, index: int) -> np.ndarray:
        """Ids of one row without ``<cls>`` and ``<eos>``, shape (length,), or (fixed_length,) with padding; a view."""
        batch, row = self._locate(index)
        view = self._views[batch]
        if view is None:
            column = self._batches[batch].column("tokens")
            view = as_numpy(column.offsets), as_numpy(column.values)
            self._views[batch] = view
        offsets, values = view
        return values[offsets[row] : offsets[row + 1]]

    def _text(self, column: str, index: int) -> str:
        batch, row = self._locate(index)
        return str(self._batches[batch].column(column)[row].as_py())

    def id(self, index: int) -> str:
        """Identifier of one row: the first word of its header."""
        return self._text("id", index)

    def header(self, index: int) -> str:
        """Whole header of one row."""
        return self._text("header", index)

    def cluster(self, index: int) -> str:
        """Cluster of one row, "" where none is known."""
        return self._text("cluster", index)

    def tag_of(self, index: int) -> str:
        """Source tag of one row, "" where it has none."""
        return self.manifest.tags[self.tag_codes[index]]

    @property
    def tags(self) -> list[str]:
        """Every tag of the folder; `tag_codes` index it."""
        return list(self.manifest.tags)

    def _column(self, name: str, dtype: type) -> np.ndarray:
        parts: list[np.ndarray] = [as_numpy(batch.column(name)).astype(dtype) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    @cached_property
    def lengths(self) -> np.ndarray:
        """True tokens of each row, shape (N,), int64."""
        return self._column("length", np.int64)

    @cached_property
    def window_starts(self) -> np.ndarray:
        """0-based first residue of each row in its record, shape (N,), int64."""
        return self._column("window_start", np.int64)

    @cached_property
    def tag_codes(self) -> np.ndarray:
        """Index into `tags` of each row, shape (N,), int16."""
        parts = [as_numpy(batch.column("tag").indices) for batch in self._batches]
        return np.concatenate(parts).astype(np.int16) if parts else np.zeros(0, np.int16)

    @cached_property
    def alphabet(self) -> Alphabet:
        """Alphabet of the tokens."""
        try:
            return Alphabet.from_plain(self.manifest.alphabet)
        except ConfigError as error:
            raise ShardError(f"{self.folder}: {error}") from None

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the checksums of the split's files, in order."""
        return split_fingerprint(self.info)


def split_fingerprint(info: SplitInfo) -> str:
    """SHA-256 over the checksums of a split's files, in order."""
    import hashlib

    return hashlib.sha256("".join(shard.sha256 for shard in info.shards).encode()).hexdigest()


def token_batches(folder: str | Path, info: SplitInfo) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Batches of a split's rows in order, for passes over all of it; a folder without its manifest yet will do.

    Yields
    ------
    tuple
        Tokens end to end, shape (T,); offsets of the rows, shape (N + 1,); true lengths, shape (N,).
    """
    import pyarrow as pa

    for shard in info.shards:
        with pa.memory_map(str(Path(folder) / shard.file)) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                column = batch.column("tokens")
                yield (
                    as_numpy(column.values),
                    as_numpy(column.offsets),
                    as_numpy(batch.column("length")),
                )
