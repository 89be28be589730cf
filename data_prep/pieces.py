"""Pieces: the cleaned, filtered, encoded records of one block, on disk until the shards are written."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.arrow import as_arrow, empty_strings, strings, texts_as_arrow
from protlat.data.policies import clean_block
from protlat.data.records import RecordBlock, SequenceReport, Texts
from protlat.errors import SequenceError
from protlat.files import write_text

from .config import PrepConfig

if TYPE_CHECKING:
    import pyarrow as pa

HASH_BYTES = 16


@dataclass
class PieceInfo:
    """What is known of a finished piece; its JSON file marks it as finished.

    Attributes
    ----------
    source, block : int
        Index of the source and number of the block in it.
    n_rows, n_tokens : int
    size_bytes, crc32 : int
        Of the Arrow file, checked before a rerun takes the piece.
    report : dict
        Counts of a `SequenceReport`.
    tags : list of str
        Different tags of the rows, sorted.
    """

    source: int
    block: int
    n_rows: int
    n_tokens: int
    size_bytes: int
    crc32: int
    report: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)


def piece_path(folder: Path, source: int, block: int) -> Path:
    return folder / f"{source:05d}-{block:07d}.arrow"


def load_finished(folder: Path, source: int, block: int) -> PieceInfo | None:
    """A finished piece of an earlier run, None if there is none or it is damaged."""
    path = piece_path(folder, source, block)
    try:
        info = PieceInfo(**json.loads(path.with_suffix(".json").read_text()))
        data = path.read_bytes()
    except (OSError, ValueError, TypeError):
        return None
    return info if len(data) == info.size_bytes and zlib.crc32(data) == info.crc32 else None


class PieceMaker:
    """Turns blocks of records into pieces; runs in the workers.

    Parameters
    ----------
    config : PrepConfig
    alphabet : Alphabet
    folder : Path
        Where pieces are written.
    """

    def __init__(self, config: PrepConfig, alphabet: Alphabet, folder: Path) -> None:
        self.config, self.alphabet, self.folder = config, alphabet, folder
        self._tag = re.compile(config.tag_pattern) if config.tag_pattern else None
        self._excluded = frozenset(config.exclude_tags)

    def make(self, block: RecordBlock, report: SequenceReport, source: int, index: int) -> PieceInfo:
        """Clean, filter, encode and hash a block, and write it.

        Raises
        ------
        SequenceError
            A record breaks a policy that says ``error``.
        """

        if self.alphabet.name == "protein":
            block = clean_block(block, self.config.policy, report)
        else:
            block = self._count_documents(block, report)
        block, tags = self._filter_tags(block, report)
        tokens, block, tags = self._encode(block, tags, report)
        keep = self._filter_lengths(block, tokens.lengths, report)
        if not keep.all():
            block, tokens = block.take(keep), self._take_tokens(tokens, keep)
            tags = _kept(tags, keep)
        report.n_kept = len(block)
        width = self.alphabet.dtype.itemsize
        report.n_residues_kept = len(tokens.data) // width
        table = self._table_of(block, tags, tokens)
        data = _as_file(table)
        path = piece_path(self.folder, source, index)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
        skipped = "".join(
            f"{row.file}\t{row.line_1based}\t{one_line(row.identifier)}\t{one_line(row.reason)}\n"
            for row in report.skipped
        )
        if skipped:
            write_text(path.with_suffix(".skipped"), skipped)
        counts = {
            "n_records": report.n_records,
            "n_kept": report.n_kept,
            "n_residues_in": report.n_residues_in,
            "n_residues_kept": report.n_residues_kept,
            "changes": dict(report.changes),
            "unknown": dict(report.unknown),
            "reasons": dict(report.reasons),
            "warnings": report.warnings,
        }
        info = PieceInfo(
            source,
            index,
            len(block),
            report.n_residues_kept,
            len(data),
            zlib.crc32(data),
            counts,
            sorted(set(tags)) if self._tag else [],
        )
        temporary.write_text(json.dumps(asdict(info)))
        temporary.replace(path.with_suffix(".json"))
        return info

    def _count_documents(self, block: RecordBlock, report: SequenceReport) -> RecordBlock:
        """Documents keep every byte; only empty ones are left out."""
        report.n_records += len(block)
        report.n_residues_in += len(block.residues.data)
        keep = block.residues.lengths > 0
        for index in np.flatnonzero(~keep).tolist():
            report.skip(block.source, int(block.lines[index]), block.identifiers[index].decode(), "empty record")
        return block.take(keep)

    def _filter_tags(self, block: RecordBlock, report: SequenceReport) -> tuple[RecordBlock, list[str]]:
        if self._tag is None:
            return block, []
        tags = []
        for identifier in block.identifiers.to_list():
            found = self._tag.search(identifier.decode())
            tags.append((found.group(1) or "") if found else "")
        if not self._excluded:
            return block, tags
        keep = np.array([tag not in self._excluded for tag in tags], dtype=bool)
        for index in np.flatnonzero(~keep).tolist():
            self._skip(block, index, "excluded tag", tags[index], report)
        return block.take(keep), [tag for tag in tags if tag not in self._excluded]

    def _filter_lengths(self, block: RecordBlock, lengths: np.ndarray, report: SequenceReport) -> np.ndarray:
        width = self.alphabet.dtype.itemsize
        lengths = lengths // width
        short = lengths < self.config.min_length
        for index in np.flatnonzero(short).tolist():
            self._skip(block, index, "too short", f"{lengths[index]} < {self.config.min_length}", report)
        if self.config.max_length is None:
            return ~short
        long = lengths > self.config.max_length
        for index in np.flatnonzero(long).tolist():
            detail = f"{lengths[index]} > {self.config.max_length}"
            if self.config.long == "error":
                where = f"{block.source}:{block.lines[index]}: {block.identifiers[index].decode()}"
                raise SequenceError(f"{where}: too long: {detail}; --long skip, window or cut says what to do")
            if self.config.long == "skip":
                self._skip(block, index, "too long", detail, report)
        return ~(short | long) if self.config.long == "skip" else ~short

    def _skip(self, block: RecordBlock, index: int, reason: str, detail: str, report: SequenceReport) -> None:
        report.skip(block.source, int(block.lines[index]), block.identifiers[index].decode(), reason, detail)

    def _encode(
        self, block: RecordBlock, tags: list[str], report: SequenceReport
    ) -> tuple[Texts, RecordBlock, list[str]]:
        """Tokens as raw bytes of the alphabet's type, offsets in bytes."""
        if self.alphabet.name == "protein":
            return block.residues, block, tags
        if self.alphabet.name == "bytes" and b"<mask>" not in block.residues.data:
            wide = np.frombuffer(block.residues.data, dtype=np.uint8).astype(self.alphabet.dtype)
            return Texts(wide.tobytes(), block.residues.offsets * self.alphabet.dtype.itemsize), block, tags
        encoded, keep = [], np.ones(len(block), dtype=bool)
        for index, text in enumerate(block.residues.to_list()):
            try:
                encoded.append(self.alphabet.encode(text).tobytes())
            except UnicodeDecodeError as error:
                keep[index] = False
                self._skip(block, index, "not UTF-8 text", f"byte {error.start}", report)
        return Texts.of(encoded), block.take(keep), _kept(tags, keep)

    def _take_tokens(self, tokens: Texts, keep: np.ndarray) -> Texts:
        return Texts.gather(tokens.data, tokens.offsets[:-1][keep], tokens.offsets[1:][keep])

    def _table_of(self, block: RecordBlock, tags: list[str], tokens: Texts) -> pa.RecordBatch:
        import pyarrow as pa

        blake2b = hashlib.blake2b
        hashes = b"".join([blake2b(item, digest_size=HASH_BYTES).digest() for item in tokens.to_list()])
        width = self.alphabet.dtype.itemsize
        values = pa.Array.from_buffers(
            pa.uint8() if width == 1 else pa.uint16(), len(tokens.data) // width, [None, pa.py_buffer(tokens.data)]
        )
        token_offsets = as_arrow((tokens.offsets // width).astype(np.int32))
        columns = {
            "id": texts_as_arrow(block.identifiers),
            "header": texts_as_arrow(block.headers),
            "tag": strings(tags) if self._tag else empty_strings(len(block)),
            "line": as_arrow(block.lines.astype(np.int64)),
            "tokens": pa.ListArray.from_arrays(token_offsets, values),
            "hash": pa.Array.from_buffers(pa.binary(HASH_BYTES), len(block), [None, pa.py_buffer(hashes)]),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _as_file(table: pa.RecordBatch) -> pa.Buffer:
    """A batch as an Arrow file in memory."""
    import pyarrow as pa

    # Room for the batch, the schema and the footer: a growing buffer would copy everything again.
    room = pa.allocate_buffer(pa.ipc.get_record_batch_size(table) + 65_536)
    sink = pa.FixedSizeBufferWriter(room)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table)
    return room.slice(0, sink.tell())


def _kept(tags: list[str], keep: np.ndarray) -> list[str]:
    """The tags at a boolean mask; none stay none."""
    return [tag for tag, kept in zip(tags, keep.tolist(), strict=True) if kept] if tags else tags


def one_line(text: str) -> str:
    """Text for a cell of a tab-separated table."""
    return text.replace("\t", " ").replace("\n", " ").replace("\r", " ")


def read_piece(path: Path) -> pa.RecordBatch:
    """The rows of a piece, memory-mapped."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
