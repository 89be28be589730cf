"""What readers hand on: one record, a block of records, and the account of what was changed or left out."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

# `<mask>` is one byte while letters are handled in bulk. "#" cannot be meant otherwise: cleaning leaves out records
# that hold it.
MASK_BYTE = b"#"
MASK_TEXT = b"<mask>"


@dataclass(frozen=True)
class SequenceRecord:
    """One sequence, cleaned by a `SequencePolicy`.

    Attributes
    ----------
    identifier : str
        First word of the header; ``unnamed-LINE`` where the header is blank.
    header : str
        The whole header without ``>``.
    residues : bytes
        Upper-case ASCII letters; ``<mask>`` stands as written.
    source : str
        ``FILE:LINE`` of the header, 1-based.
    """

    identifier: str
    header: str
    residues: bytes
    source: str


@dataclass(frozen=True)
class SkippedRecord:
    """A record or text that was left out.

    Attributes
    ----------
    file : str
        Path as given.
    line_1based : int
        Line where the record begins; 0 where the format has no lines.
    identifier : str
    reason : str
        Starts with a short constant phrase, so that reasons can be counted.
    """

    file: str
    line_1based: int
    identifier: str
    reason: str


@dataclass
class SequenceReport:
    """Mutable counts of everything that was read, changed or left out.

    Attributes
    ----------
    n_records, n_kept : int
        Records seen and records handed on.
    n_residues_in, n_residues_kept : int
        Residue characters seen (line ends excluded), and residues handed on (``<mask>`` is one).
    changes : Counter
        What was altered, by name: ``lower-case residues``, ``terminal * dropped`` ...
    unknown : Counter
        Letters beyond the 20 standard residues, as they stood in the input.
    reasons : Counter
        Records left out, by reason.
    skipped : list of SkippedRecord
        Filled unless `on_skip` takes them.
    warnings : list of str
    on_skip : callable or None
        Receives each `SkippedRecord` instead of the list, for inputs with many.
    """

    n_records: int = 0
    n_kept: int = 0
    n_residues_in: int = 0
    n_residues_kept: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    skipped: list[SkippedRecord] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    on_skip: Callable[[SkippedRecord], None] | None = None

    def skip(self, file: str, line_1based: int, identifier: str, reason: str, detail: str = "") -> None:
        """Count one record as left out; `detail` is shown but not counted apart."""
        self.reasons[reason] += 1
        record = SkippedRecord(file, line_1based, identifier, f"{reason}: {detail}" if detail else reason)
        if self.on_skip is None:
            self.skipped.append(record)
        else:
            self.on_skip(record)

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    def add(self, other: SequenceReport) -> None:
        """Add the counts of another report; its skipped records are not copied."""
        self.n_records += other.n_records
        self.n_kept += other.n_kept
        self.n_residues_in += other.n_residues_in
        self.n_residues_kept += other.n_residues_kept
        self.changes.update(other.changes)
        self.unknown.update(other.unknown)
        self.reasons.update(other.reasons)
        for message in other.warnings:
            self.warn(message)


@dataclass(frozen=True)
class Texts:
    """Many byte strings end to end.

    Attributes
    ----------
    data : bytes
    offsets : numpy.ndarray, shape (N + 1,), int64
        String i is ``data[offsets[i]:offsets[i + 1]]``.
    """

    data: bytes
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.data[int(self.offsets[index]) : int(self.offsets[index + 1])]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def to_list(self) -> list[bytes]:
        ends = self.offsets.tolist()
        return [self.data[start:end] for start, end in itertools.pairwise(ends)]

    def take(self, keep: np.ndarray) -> Texts:
        """The strings at a boolean mask, shape (N,)."""
        if keep.all():
            return self
        starts, ends = self.offsets[:-1][keep], self.offsets[1:][keep]
        return Texts.gather(self.data, starts, ends)

    @staticmethod
    def gather(data: bytes, starts: np.ndarray, ends: np.ndarray) -> Texts:
        """The slices ``data[starts[i]:ends[i]]``, copied end to end."""
        joined = b"".join([data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])
        return Texts(joined, offsets_of(ends - starts))

    @staticmethod
    def of(items: list[bytes]) -> Texts:
        return Texts(b"".join(items), offsets_of(np.fromiter(map(len, items), dtype=np.int64, count=len(items))))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Offsets of pieces laid end to end, shape (N + 1,), int64."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True)
class RecordBlock:
    """Some consecutive records of one source, by column.

    Attributes
    ----------
    source : str
        Path as given.
    identifiers, headers : Texts
        UTF-8.
    residues : Texts
        Raw as read; ids after `protlat.data.policies.clean_block`; documents are UTF-8 text.
    lines : numpy.ndarray, shape (N,), int64
        1-based line of each record.
    """

    source: str
    identifiers: Texts
    headers: Texts
    residues: Texts
    lines: np.ndarray

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, keep: np.ndarray) -> RecordBlock:
        """The records at a boolean mask, shape (N,)."""
        if keep.all():
            return self
        return RecordBlock(
            self.source,
            self.identifiers.take(keep),
            self.headers.take(keep),
            self.residues.take(keep),
            self.lines[keep],
        )
