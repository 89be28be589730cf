"""Files of variants: one per line, or a table with a column of them and columns of measured values."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protlat.errors import SequenceError
from protlat.inference.variants import Variant, parse_variant, variant_between
from protlat.tasks.readers.base import read_bytes, read_text

MUTANT_NAMES = ("mutant", "mutants", "mutation", "mutations", "variant", "variants", "hgvs_pro")
_COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")


@dataclass
class VariantTable:
    """Variants of one file in order, with the values that stand beside them.

    Attributes
    ----------
    path : str
    variants : list of Variant
    values : dict of str to list of float
        By column, in step with `variants`; nan where a cell is empty.
    faults : list of (place, text)
        Rows that are no variant, where these are let pass.
    """

    path: str
    variants: list[Variant] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)


def read_variants(
    path: str,
    column: str = "",
    value_columns: Sequence[str] = (),
    sequence_column: str = "",
    wild_type: str = "",
    offset: int = 1,
    keep_going: bool = False,
) -> VariantTable:
    """Read variants.

    Parameters
    ----------
    path : str
        .csv, .tsv or .parquet: a table with a header; anything else: one variant per line, ``#`` starts a comment.
        May be compressed.
    column : str
        Column of the variants; empty: mutant, mutation, variant or hgvs_pro, whichever comes first.
    value_columns : sequence of str
        Columns of numbers to keep.
    sequence_column : str
        Column of whole variant sequences, in place of `column`.
    wild_type : str
        What whole sequences are compared with.
    offset : int
        Number of the wild type's first residue, for the names of mutations found that way.
    keep_going : bool
        Note rows that are no variant in `VariantTable.faults` and go on.

    Raises
    ------
    SequenceError
        The file cannot be read, lacks a column, holds no variant, or, unless `keep_going`, a row is none.
    """
    table = VariantTable(path, values={name: [] for name in value_columns})
    header, rows = _rows(path)
    if header is None and (column or value_columns or sequence_column):
        wanted = column or sequence_column or value_columns[0]
        raise SequenceError(f"{path}: column {wanted!r} needs a .csv, .tsv or .parquet file with a header")
    place = 0 if header is None else _place(path, header, sequence_column or column, bool(sequence_column))
    numbers = {name: _place(path, header or [], name, True) for name in value_columns}
    for line, cells in rows:
        where = f"{path}:{line}"
        if header is not None and len(cells) != len(header):
            raise SequenceError(f"{where}: {len(cells)} columns, where the header names {len(header)}")
        try:
            text = cells[place]
            variant = (
                variant_between(wild_type, text, where, offset=offset)
                if sequence_column
                else parse_variant(text, where)
            )
        except SequenceError as error:
            if not keep_going:
                raise
            table.faults.append((where, str(error)))
            continue
        for name, index in numbers.items():
            table.values[name].append(_number(cells[index], name, where))
        table.variants.append(variant)
    if not table.variants:
        raise SequenceError(f"{path}: no variant in it; expected lines or a column such as A24G")
    return table


def _rows(path: str) -> tuple[list[str] | None, list[tuple[int, list[str]]]]:
    """Header, None for plain lines, and (1-based line, cells) of each row that is not blank."""
    name = Path(path).name.lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    if name.endswith(".parquet"):
        return _parquet(path)
    text = read_text(path)
    if not name.endswith((".csv", ".tsv")):
        lines = ((line, text.partition("#")[0].strip()) for line, text in enumerate(text.splitlines(), start=1))
        return None, [(line, [content]) for line, content in lines if content]
    csv.field_size_limit(sys.maxsize)
    first = text.partition("\n")[0]
    mark = "\t" if name.endswith(".tsv") else max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    rows = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise SequenceError(f"{path}:{reader.line_num}: not a table: {error}") from None
    if not rows:
        raise SequenceError(f"{path}: empty file; expected a header that names the columns")
    return [cell.strip() for cell in rows[0][1]], rows[1:]


def _parquet(path: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(read_bytes(path)))
    except (pa.ArrowException, OSError) as error:
        raise SequenceError(f"{path}: damaged Parquet file: {' '.join(str(error).split())}") from None
    columns = [["" if cell is None else str(cell) for cell in column.to_pylist()] for column in table.columns]
    return list(table.column_names), list(enumerate(map(list, zip(*columns, strict=True)), start=1))


def _place(path: str, header: list[str], wanted: str, named: bool) -> int:
    if wanted:
        if wanted in header:
            return header.index(wanted)
        raise SequenceError(f"{path}: no column {wanted!r}; there are {', '.join(map(repr, header))}")
    lowered = [name.lower() for name in header]
    for name in MUTANT_NAMES:
        if name in lowered:
            return lowered.index(name)
    raise SequenceError(
        f"{path}: which column holds the variants? none is called {', '.join(MUTANT_NAMES)}; name one of "
        f"{', '.join(map(repr, header))} with --mutant-column"
    )


def _number(cell: str, column: str, where: str) -> float:
    text = cell.strip()
    if text.lower() in ("", "na", "nan", "none", "null"):
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise SequenceError(f"{where}: column {column!r} holds {text!r}, which is not a number") from None
    if math.isinf(value):
        raise SequenceError(f"{where}: column {column!r} holds {text!r}, which is not finite")
    return value
