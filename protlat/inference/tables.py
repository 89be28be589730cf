"""Result tables as text, JSON or Parquet, written row by row."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from protlat.errors import ConfigError
from protlat.files import atomic_path

TABLE_ENDINGS = (".tsv", ".json", ".parquet")
_ROWS_PER_GROUP = 50_000
AddRow = Callable[[Sequence[Any]], None]


def require_table_ending(path: str) -> None:
    """Check an output's ending before any work is done.

    Raises
    ------
    ConfigError
        It names no table format.
    """
    if path != "-" and Path(path).suffix.lower() not in TABLE_ENDINGS:
        raise ConfigError(f"-o {path}: use an ending of {', '.join(TABLE_ENDINGS)}, or '-' for standard output")


@contextmanager
def open_table(path: str, columns: dict[str, type], metadata: dict[str, Any]) -> Iterator[AddRow]:
    """A function that appends rows; the file takes its name when the block ends without an error.

    Parameters
    ----------
    path : str
        Ending in .tsv, .json (a list of objects) or .parquet; ``-`` writes tab-separated text to standard output.
    columns : dict of str to type
        Names and types: str, int or float.
    metadata : dict
        Kept under the key ``protlat`` of a Parquet file; text formats have no place for it.
    """
    if path == "-":
        yield _tsv(sys.stdout, list(columns))
        return
    suffix = Path(path).suffix.lower()
    with atomic_path(path) as temporary:
        if suffix == ".parquet":
            with _parquet(temporary, columns, metadata) as add:
                yield add
            return
        with open(temporary, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as out:
            if suffix == ".tsv":
                yield _tsv(out, list(columns))
            else:
                with _json(out, list(columns)) as add:
                    yield add


def _tsv(out: TextIO, names: list[str]) -> AddRow:
    out.write("\t".join(names) + "\n")

    def add(row: Sequence[Any]) -> None:
        out.write("\t".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row) + "\n")

    return add


@contextmanager
def _json(out: TextIO, names: list[str]) -> Iterator[AddRow]:
    n_rows = 0

    def add(row: Sequence[Any]) -> None:
        nonlocal n_rows
        # nan is no JSON number; null is what readers turn back into one.
        values = {name: None if value != value else value for name, value in zip(names, row, strict=True)}
        out.write(("[\n" if n_rows == 0 else ",\n") + json.dumps(values, ensure_ascii=False))
        n_rows += 1

    yield add
    out.write("\n]\n" if n_rows else "[]\n")


@contextmanager
def _parquet(path: Path, columns: dict[str, type], metadata: dict[str, Any]) -> Iterator[AddRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    schema = schema.with_metadata({"protlat": json.dumps(metadata, ensure_ascii=False)})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        rows: list[Sequence[Any]] = []

        def flush() -> None:
            if rows:
                writer.write_table(pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema))
                rows.clear()

        def add(row: Sequence[Any]) -> None:
            rows.append(row)
            if len(rows) >= _ROWS_PER_GROUP:
                flush()

        yield add
        flush()
