"""CSV, TSV and Parquet with named columns."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.readers.base import RawLabel, RawSet, SourceConfig, located, read_bytes, read_text, split_of

# Names that people give to these columns; the first one present is taken, whatever its case.
SEQUENCE_NAMES = ("sequence", "seq", "protein_sequence", "aa_seq", "protein")
LABEL_NAMES = ("label", "labels", "target", "class", "value", "y", "score")
NAME_NAMES = ("id", "name", "identifier", "accession", "entry", "protein_id", "uniprot_id")
SET_NAMES = ("set", "split", "stage", "partition")
VALIDATION_NAMES = ("validation",)
MASK_NAMES = ("mask", "resolved")
_PARQUET_MAGIC = b"PAR1"
_COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")


@dataclass(frozen=True)
class _Columns:
    sequence: int
    label: int
    name: int | None
    set: int | None
    validation: int | None
    mask: int | None


class TableSource(SourceConfig):
    """A table with a column of sequences and one of labels."""

    kind: Literal["table"] = "table"
    sequence: str = ""
    """Column of the sequences; empty: sequence or seq, whichever there is."""
    label: str = ""
    """Column of the labels; empty: label, target ... A residue's labels are a string as long as the sequence."""
    name: str = ""
    """Column of the identifiers; empty: id, name ... or else the file's name and the row."""
    set: str = ""
    """Column of the split; empty: set or split where there is one."""
    validation: str = ""
    """Column that is true for validation rows of train; empty: validation where there is one."""
    mask: str = ""
    """Column of 1 (scored) and 0 per residue; empty: mask where there is one."""
    delimiter: Literal["auto", "comma", "tab", "semicolon"] = "auto"
    """What parts the columns; auto: whichever of comma, tab and semicolon the first line holds most of."""

    def read(self, folder: Path, per_residue: bool, report: SequenceReport) -> RawSet:
        path = located(folder, self.path)
        data = read_bytes(path)
        is_parquet = data.startswith(_PARQUET_MAGIC)
        header, rows = _parquet(path, data) if is_parquet else self._text(path)
        columns = self._columns(path, header, per_residue)
        stem = _stem(self.path)
        found = RawSet(path)
        n_blank = 0
        for row_1based, (line, cells) in enumerate(rows, start=1):
            if not any(cell not in ("", None) for cell in cells):
                n_blank += 1
                continue
            if len(cells) != len(header):
                raise SequenceError(
                    f"{path}:{line}: {len(cells)} columns, where the first line names {len(header)}: {', '.join(header)}"
                )
            name = _text(cells[columns.name]) if columns.name is not None else ""
            name = name or f"{stem}-{row_1based}"
            set_name = _text(cells[columns.set]) if columns.set is not None else ""
            flag = _text(cells[columns.validation]) if columns.validation is not None else ""
            split = split_of(set_name, flag, f"{path}:{line}: {name}")
            mask = _joined(cells[columns.mask]) if columns.mask is not None else None
            residues = _text(cells[columns.sequence]).encode("utf-8")
            found.add(name, residues, line, _label(cells[columns.label]), split, mask or None)
        if n_blank:
            report.changes["blank lines of tables"] += n_blank
        return found

    def _text(self, path: str) -> tuple[list[str], Iterator[tuple[int, Sequence[Any]]]]:
        text = read_text(path)
        if not text.strip():
            raise SequenceError(f"{path}: empty file; expected a first line with the names of the columns")
        marks = {"comma": ",", "tab": "\t", "semicolon": ";"}
        if self.delimiter != "auto":
            mark = marks[self.delimiter]
        else:
            first = text.lstrip().splitlines()[0]
            mark = max(marks.values(), key=first.count)
        csv.field_size_limit(sys.maxsize)
        # newline="" leaves line ends inside quotes to the csv module.
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        rows = _csv_rows(path, reader)
        header = next(cells for _, cells in rows if any(str(cell).strip() for cell in cells))
        return [str(cell).strip() for cell in header], rows

    def _columns(self, path: str, header: list[str], per_residue: bool) -> _Columns:
        def place(field: str, wanted: str, usual: tuple[str, ...], needed: bool) -> int | None:
            if wanted:
                if wanted in header:
                    return header.index(wanted)
                raise SequenceError(
                    f"{path}: no column {wanted!r} ({field}); there are: {', '.join(map(repr, header))}"
                )
            lowered = [cell.lower() for cell in header]
            for option in usual:
                if option in lowered:
                    return lowered.index(option)
            if needed:
                raise SequenceError(
                    f"{path}: which column holds the {field}? none is called {' or '.join(usual)}; set {field}: to one of "
                    f"{', '.join(map(repr, header))}"
                )
            return None

        sequence = place("sequence", self.sequence, SEQUENCE_NAMES, True)
        label = place("label", self.label, LABEL_NAMES, True)
        assert sequence is not None
        assert label is not None
        return _Columns(
            sequence,
            label,
            place("name", self.name, NAME_NAMES, False),
            None if self.split else place("set", self.set, SET_NAMES, False),
            None if self.split else place("validation", self.validation, VALIDATION_NAMES, False),
            place("mask", self.mask, MASK_NAMES, False) if per_residue else None,
        )


def _csv_rows(path: str, reader: Any) -> Iterator[tuple[int, Sequence[Any]]]:
    """Rows with the 1-based line each begins at."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SequenceError(f"{path}:{line}: not a table: {error}") from None
        yield line, row


def _parquet(path: str, data: bytes) -> tuple[list[str], Iterator[tuple[int, Sequence[Any]]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise SequenceError(f"{path}: damaged Parquet file: {' '.join(str(error).split())}") from None
    columns = [column.to_pylist() for column in table.columns]
    return list(table.column_names), ((row, cells) for row, cells in enumerate(zip(*columns, strict=True), start=1))


def _stem(path: str) -> str:
    name = Path(path).name
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    return name.rpartition(".")[0] or name


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", errors="replace").strip()
    return str(cell).strip()


def _joined(cell: Any) -> str:
    if isinstance(cell, list | tuple):
        return "".join(str(int(item)) if isinstance(item, bool | int | float) else str(item) for item in cell)
    return _text(cell)


def _label(cell: Any) -> RawLabel:
    """A list column (Parquet) is one text per residue or per class; whatever else is one text."""
    if isinstance(cell, list | tuple):
        return [_text(item) for item in cell]
    return _text(cell)
