"""What every reader of labelled data gives back, and the settings that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from protlat.config import Config
from protlat.data.compression import ByteSource
from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.data import PairTarget
from protlat.tasks.names import COMPRESSIONS

# How a label is written before it is understood: a text; one text per residue; the coordinates of a chain; none.
RawLabel = str | Sequence[str] | PairTarget | None
UTF8_BOM = b"\xef\xbb\xbf"


@dataclass
class RawSet:
    """Records of one file, labels still as they were written; all lists run in step.

    Attributes
    ----------
    path : str
        The file, for messages.
    names : list of str
        Identifiers; they may recur.
    residues : list of bytes
        As written, not yet cleaned.
    lines : list of int
        1-based line of each record (row, where the format has no lines).
    labels : list
        A text; for residues also one text per residue; a `PairTarget`; None where there is no label.
    masks : list or None
        One character per residue, ``0`` where it is not to be scored; None where nothing is masked.
    splits : list of str
        Split named by the record itself, "" where it names none.
    """

    path: str
    names: list[str] = field(default_factory=list)
    residues: list[bytes] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    labels: list[RawLabel] = field(default_factory=list)
    masks: list[str | None] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    def add(
        self, name: str, residues: bytes, line: int, label: RawLabel, split: str = "", mask: str | None = None
    ) -> None:
        """Append one record."""
        self.names.append(name)
        self.residues.append(residues)
        self.lines.append(line)
        self.labels.append(label)
        self.masks.append(mask)
        self.splits.append(split)


@dataclass(frozen=True)
class ReadContext:
    """What a reader has to know of the task.

    Attributes
    ----------
    folder : Path
        Folder that the paths of sources are relative to.
    per_residue : bool
        Whether labels belong to residues.
    wild_type : str
        Sequence that variants derive from, "" where the task has none.
    offset : int
        Number of its first residue in the names of variants.
    """

    folder: Path
    per_residue: bool = False
    wild_type: str = ""
    offset: int = 1


class SourceConfig(Config, ABC):
    """One file of labelled sequences; a union of the readers' configs on ``kind`` is the registry."""

    path: str = Field(min_length=1)
    """File, relative to the data folder; plain, .gz, .zst, .bz2 or .xz."""
    split: str = ""
    """Split that all its records belong to; empty: the records say so themselves, or all are train."""
    rename_splits: dict[str, str] = Field(default_factory=dict)
    """New names of the splits that the records name, such as {test: new364}."""
    label_map: dict[str, str | None] = Field(default_factory=dict)
    """Class of each label as written, before the task's own label_map; null: left out (a residue: not scored)."""
    title: str = ""
    """What the file is, for reports."""

    @field_validator("rename_splits", "label_map", mode="before")
    @classmethod
    def _text_keys(cls, value: Any) -> Any:
        return text_mapping(value)

    @abstractmethod
    def read(self, context: ReadContext, report: SequenceReport) -> RawSet:
        """Read the file.

        Parameters
        ----------
        context : ReadContext
        report : SequenceReport
            Receives what was changed or left out while reading.

        Raises
        ------
        SequenceError
            The file is missing, damaged or not of this format; the message names file and line.
        """


def text_mapping(value: Any) -> Any:
    """Keys and values of a mapping as texts, since YAML reads ``0: H`` as a number.

    Raises
    ------
    ValueError
        A key that YAML read as true or false, whose spelling is lost.
    """
    if not isinstance(value, dict):
        return value
    for item in (*value, *value.values()):
        if isinstance(item, bool):
            raise ValueError(f"YAML reads yes, no, on, off, true and false as {item}: put the label in quotes")
    return {str(key): item if item is None else str(item) for key, item in value.items()}


def located(folder: Path, path: str) -> str:
    """Path of a task's file.

    Raises
    ------
    SequenceError
        There is no such file; a neighbour with or without a compression suffix is taken in its stead.
    """
    wanted = folder / path
    if wanted.is_file():
        return str(wanted)
    for suffix in COMPRESSIONS:
        other = wanted.with_name(wanted.name.removesuffix(suffix) if path.endswith(suffix) else wanted.name + suffix)
        if other != wanted and other.is_file():
            return str(other)
    raise SequenceError(f"{wanted}: no such file; --data names the folder that the task's paths are relative to")


def read_bytes(path: str) -> bytes:
    """The decompressed content of a file without a UTF-8 byte order mark.

    Raises
    ------
    SequenceError
        The file cannot be read or its compression is damaged.
    """
    return b"".join(ByteSource(path).chunks()).removeprefix(UTF8_BOM)


def decoded(path: str, data: bytes) -> str:
    """UTF-8 text, line ends as they are.

    Raises
    ------
    SequenceError
        Not UTF-8; names the line.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        shown = f"byte 0x{data[error.start]:02X}"
        raise SequenceError(f"{path}:{line}: {shown} is not UTF-8 text; save the file as UTF-8") from None


def read_text(path: str) -> str:
    """The decompressed content of a UTF-8 file.

    Raises
    ------
    SequenceError
        The file cannot be read or is not UTF-8.
    """
    return decoded(path, read_bytes(path))


def read_lines(path: str) -> list[str]:
    """Lines of a UTF-8 file, whatever its line ends.

    Raises
    ------
    SequenceError
        The file cannot be read or is not UTF-8.
    """
    # str.splitlines would break at characters that have nothing to do with lines.
    return read_text(path).replace("\r\n", "\n").replace("\r", "\n").split("\n")


def split_of(name: str, validation: str, where: str) -> str:
    """Name of the split that SET and VALIDATION together mean, as biotrainer and FLIP write them.

    Raises
    ------
    SequenceError
        VALIDATION is neither true nor false.
    """
    lowered = name.strip()
    if lowered.lower() in ("train", "training"):
        lowered = "train"
    elif lowered.lower() in ("val", "valid", "validation", "dev"):
        lowered = "valid"
    elif lowered.lower() in ("test", "testing"):
        lowered = "test"
    flag = validation.strip().lower()
    if flag not in ("", "true", "false", "1", "0", "yes", "no", "nan", "none"):
        raise SequenceError(f"{where}: VALIDATION is {validation!r}; allowed: True, False or nothing")
    return "valid" if flag in ("true", "1", "yes") and lowered in ("", "train") else lowered
