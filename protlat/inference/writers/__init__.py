"""One writer per file format; each takes rows in input order and holds one of them, or one small batch, in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from protlat.errors import ConfigError, MissingExtraError
from protlat.inference.naming import Column
from protlat.inference.parts import Row

VectorOf = Callable[[Column], Any]

FORMATS = ("h5", "npz", "parquet", "h5ad")
_ENDINGS = {".h5": "h5", ".hdf5": "h5", ".hdf": "h5", ".npz": "npz", ".parquet": "parquet", ".h5ad": "h5ad"}
_PER_SEQUENCE_ONLY = ("parquet", "h5ad")


class Writer(Protocol):
    """What a format implements; `columns` are those it holds, already labelled."""

    def add(self, row: Row, vector: VectorOf) -> None:
        """Append one sequence; `vector` gives the array of a column."""
        ...

    def close(self, metadata: dict[str, Any]) -> None:
        """Write what stands at the end, then the metadata, and close the file."""
        ...


def format_of(path: str | Path, given: str | None = None) -> str:
    """Format by `given` name, else by the file's ending.

    Raises
    ------
    ConfigError
        Neither says which.
    """
    if given is not None:
        return given
    ending = Path(path).suffix.lower()
    if ending not in _ENDINGS:
        raise ConfigError(f"-o {path}: the ending {ending!r} names no format; use {', '.join(_ENDINGS)}, or --format")
    return _ENDINGS[ending]


def columns_for(format_name: str, columns: Sequence[Column]) -> list[Column]:
    """Columns that a format can hold: parquet and h5ad have one row a sequence, so no per-residue vectors."""
    return [column for column in columns if not (column.per_residue and format_name in _PER_SEQUENCE_ONLY)]


def open_writer(
    path: Path, format_name: str, columns: Sequence[Column], dim: int, dtype: Any, n_rows: int, scratch: Path
) -> Writer:
    """Start a file.

    Parameters
    ----------
    path : Path
        Temporary path; the caller renames it.
    format_name : str
        One of `FORMATS`.
    columns : sequence of Column
        Labelled columns.
    dim : int
        Numbers of one vector.
    dtype : numpy.dtype
        Type of the numbers.
    n_rows : int
        Sequences that will be added.
    scratch : Path
        Folder for files that only live while writing; the caller removes it.

    Raises
    ------
    MissingExtraError
        h5ad without anndata.
    """
    if format_name == "h5":
        from protlat.inference.writers.hdf5 import HDF5Writer

        return HDF5Writer(path, columns)
    if format_name == "npz":
        from protlat.inference.writers.npz import NpzWriter

        return NpzWriter(path, columns)
    if format_name == "parquet":
        from protlat.inference.writers.parquet import ParquetWriter

        return ParquetWriter(path, columns, dim, dtype)
    from protlat.inference.writers.anndata import AnnDataWriter

    return AnnDataWriter(path, columns, dim, dtype, n_rows, scratch)


def require_format(format_name: str) -> None:
    """Check that a format's package is there before any work is done.

    Raises
    ------
    MissingExtraError
        h5ad without anndata.
    """
    from importlib.util import find_spec

    if format_name == "h5ad" and find_spec("anndata") is None:
        raise MissingExtraError("anndata", "anndata", "writing .h5ad")
