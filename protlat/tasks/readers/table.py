"""CSV, TSV and Parquet with named columns."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.names import COMPRESSIONS
from protlat.tasks.readers.base import (
    RawLabel,
    RawSet,
    ReadContext,
    SourceConfig,
    decoded,
    located,
    read_bytes,
    split_of,
)

# Names that people give to these columns; the first one present is taken, whatever its case.
SEQUENCE_NAMES = ("sequence", "seq", "protein_sequence", "aa_seq", "protein")
LABEL_NAMES = ("label", "labels", "target", "class", "value", "y", "score")
NAME_NAMES = ("id", "name", "identifier", "accession", "entry", "protein_id", "uniprot_id")
SET_NAMES = ("set", "split", "stage", "partition")
VALIDATION_NAMES = ("validation",)
MASK_NAMES = ("mask", "resolved")
Delimiter = Literal["auto", "comma", "tab", "semicolon"]
_MARKS = {"comma": ",", "tab": "\t", "semicolon": ";"}
_PARQUET_MAGIC = b"PAR1"
Rows = Iterator[tuple[int, Sequence[Any]]]


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
    mask_path: str = ""
    """Table of the same sequences in the same order whose column `mask` is meant; empty: this table."""
    delimiter: Delimiter = "auto"
    """What parts the columns; auto: whichever of comma, tab and semicolon the first line holds most of."""

    def read(self, context: ReadContext, report: SequenceReport) -> RawSet:
        path = located(context.folder, self.path)
        header, rows = read_rows(path, self.delimiter)
        sequence = needed_column(path, header, "sequence", self.sequence, SEQUENCE_NAMES)
        label = needed_column(path, header, "label", self.label, LABEL_NAMES)
        name = column_place(path, header, "name", self.name, NAME_NAMES)
        # A source that is one split as a whole does not ask its rows.
        own_set = None if self.split else column_place(path, header, "set", self.set, SET_NAMES)
        flag = None if self.split else column_place(path, header, "validation", self.validation, VALIDATION_NAMES)
        beside = self._masks_beside(context) if self.mask_path else None
        mask = (
            column_place(path, header, "mask", self.mask, MASK_NAMES if context.per_residue else ())
            if beside is None
            else None
        )
        stem = _stem(self.path)
        found = RawSet(path)
        for row_1based, (line, cells) in enumerate(rows, start=1):
            named = (cell_text(cells[name]) if name is not None else "") or f"{stem}-{row_1based}"
            set_text = cell_text(cells[own_set]) if own_set is not None else ""
            flag_text = cell_text(cells[flag]) if flag is not None else ""
            split = split_of(set_text, flag_text, f"{path}:{line}: {named}")
            hidden = (_mask(cells[mask]) if mask is not None else "") or None
            residues = _one_line(cell_text(cells[sequence]))
            if beside is not None:
                hidden = self._next_mask(beside, residues, f"{path}:{line}")
            found.add(named, residues.encode("utf-8"), line, _label(cells[label], context), split, hidden)
        return found

    def _masks_beside(self, context: ReadContext) -> Iterator[tuple[str, str]]:
        """Sequence and mask of each row of the other table."""
        path = located(context.folder, self.mask_path)
        header, rows = read_rows(path, self.delimiter)
        sequence = needed_column(path, header, "sequence", self.sequence, SEQUENCE_NAMES)
        mask = needed_column(path, header, "mask", self.mask, MASK_NAMES)
        return ((_one_line(cell_text(cells[sequence])), _mask(cells[mask])) for _, cells in rows)

    def _next_mask(self, beside: Iterator[tuple[str, str]], residues: str, where: str) -> str | None:
        other, mask = next(beside, ("", ""))
        if other != residues:
            raise SequenceError(
                f"{where}: {self.mask_path} has another sequence in this row, so its masks cannot be joined"
            )
        return mask or None


def read_rows(path: str, delimiter: Delimiter = "auto") -> tuple[list[str], Rows]:
    """Names of a table's columns, and its rows with the 1-based line each begins at (Parquet: its number).

    Raises
    ------
    SequenceError
        The table is empty or damaged, or, while its rows are read, a row has more or fewer cells than the first line.
    """
    data = read_bytes(path)
    if data.startswith(_PARQUET_MAGIC):
        return _parquet(path, data)
    text = decoded(path, data)
    first = text.lstrip().partition("\n")[0]
    mark = max(_MARKS.values(), key=first.count) if delimiter == "auto" else _MARKS[delimiter]
    csv.field_size_limit(sys.maxsize)
    # newline="" leaves line ends inside quotes to the csv module.
    rows = _csv_rows(path, csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True))
    header = next((cells for _, cells in rows), [])
    if not header:
        raise SequenceError(f"{path}: empty file; expected a first line with the names of the columns")
    names = [cell.strip() for cell in header]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise SequenceError(f"{path}: the first line names {', '.join(map(repr, twice))} twice")
    return names, _full_rows(path, names, rows)


def column_place(path: str, header: list[str], field: str, wanted: str, usual: tuple[str, ...]) -> int | None:
    """Place of a column by its name, else by the usual names in any case; None where there is none.

    Raises
    ------
    SequenceError
        A column asked for by name is not there.
    """
    if wanted:
        if wanted in header:
            return header.index(wanted)
        raise SequenceError(f"{path}: no column {wanted!r} ({field}); there are: {', '.join(map(repr, header))}")
    lowered = [cell.lower() for cell in header]
    return next((lowered.index(option) for option in usual if option in lowered), None)


def needed_column(path: str, header: list[str], field: str, wanted: str, usual: tuple[str, ...]) -> int:
    """`column_place` of a column that must be there.

    Raises
    ------
    SequenceError
        It is not.
    """
    place = column_place(path, header, field, wanted, usual)
    if place is None:
        raise SequenceError(
            f"{path}: which column is the {field}? none is called {' or '.join(usual)}; set {field} to one of "
            f"{', '.join(map(repr, header))}"
        )
    return place


def cell_text(cell: Any) -> str:
    """A cell as text without blanks around it."""
    if cell is None:
        return ""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", errors="replace").strip()
    return str(cell).strip()


def _csv_rows(path: str, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows that hold anything."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SequenceError(f"{path}:{line}: not a table: {error}") from None
        if any(row):
            yield line, row


def _full_rows(path: str, names: list[str], rows: Iterator[tuple[int, list[str]]]) -> Rows:
    for line, cells in rows:
        if len(cells) != len(names):
            raise SequenceError(
                f"{path}:{line}: {len(cells)} columns, where the first line names {len(names)}: {', '.join(names)}"
            )
        yield line, cells


def _parquet(path: str, data: bytes) -> tuple[list[str], Rows]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise SequenceError(f"{path}: damaged Parquet file: {' '.join(str(error).split())}") from None
    columns = [column.to_pylist() for column in table.columns]
    return list(table.column_names), enumerate(zip(*columns, strict=True), start=1)


def _stem(path: str) -> str:
    name = Path(path).name
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return name.rpartition(".")[0] or name


def _mask(cell: Any) -> str:
    """A mask as text; a list column may hold true and false, or 1 and 0."""
    if isinstance(cell, list | tuple):
        return "".join(str(int(item)) if isinstance(item, bool | int | float) else str(item) for item in cell)
    return cell_text(cell)


def _label(cell: Any, context: ReadContext) -> RawLabel:
    """A list column (Parquet) is one text per residue or class; whatever else is one text."""
    if isinstance(cell, list | tuple):
        return [cell_text(item) for item in cell]
    return _one_line(cell_text(cell)) if context.per_residue else cell_text(cell)


def _one_line(text: str) -> str:
    """Residues that a quoted cell wraps over several lines."""
    return text.replace("\r", "").replace("\n", "") if "\n" in text else text
