"""The work folder of an embedding run: finished parts on disk, so that a killed run goes on where it stopped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from protlat.errors import OutputError
from protlat.files import sync_folder, write_json
from protlat.inference.naming import Column

if TYPE_CHECKING:
    from protlat.inference.vectors import Vectors


@dataclass(frozen=True)
class Row:
    """One sequence of an embedding file, without its vectors.

    Attributes
    ----------
    name : str
        Unique in the file: the identifier, or ``identifier#2`` ... for a repeated one.
    identifier : str
        First word of the header.
    header : str
        The whole header.
    length : int
        Residues that were embedded.
    sequence_sha256 : str
        SHA-256 of the embedded residues as text.
    """

    name: str
    identifier: str
    header: str
    length: int
    sequence_sha256: str


@dataclass
class StoredPart:
    """A finished part: its rows, and its vectors read on demand."""

    rows: list[Row]
    _files: dict[Column, BinaryIO]
    _dim: int
    _dtype: np.dtype[Any]
    _offsets: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._offsets = np.concatenate([[0], np.cumsum([row.length for row in self.rows], dtype=np.int64)])

    def vector(self, index: int, column: Column) -> np.ndarray:
        """Vector of the part's row `index`: (E,), or (L, E) for ``per_tok``."""
        first, n_vectors = _span(index, column, self._offsets)
        handle = self._files[column]
        handle.seek(first * self._dim * self._dtype.itemsize)
        flat = np.fromfile(handle, self._dtype, n_vectors * self._dim)
        return flat.reshape(-1, self._dim) if column.per_residue else flat


def _span(index: int, column: Column, offsets: np.ndarray) -> tuple[int, int]:
    """First vector and number of vectors of a row in a column's file."""
    if column.per_residue:
        return int(offsets[index]), int(offsets[index + 1] - offsets[index])
    return index, 1


class WorkFolder:
    """Parts of an unfinished run beside its output.

    Parameters
    ----------
    folder : Path
        ``OUTPUT.partial``.
    columns : sequence of Column
        One file a part each.
    dim : int
        Numbers of one vector.
    dtype : numpy.dtype
        Type of the numbers.

    Notes
    -----
    A part is done when its ``part-NNNNNN.json`` exists: that file is written last and atomically, after the vectors have
    reached the disk. Everything else is left from a kill and is written again.
    """

    def __init__(self, folder: Path, columns: Sequence[Column], dim: int, dtype: np.dtype[Any]) -> None:
        self.folder = folder
        self.columns = tuple(columns)
        self.dim = dim
        self.dtype = dtype

    @property
    def journal(self) -> Path:
        return self.folder / "journal.json"

    def begin(self, identity: dict[str, Any], resume: bool, overwrite: bool) -> int:
        """Create the folder, or take up what an earlier run with the same `identity` left.

        Returns
        -------
        int
            Number of parts that are already done.

        Raises
        ------
        OutputError
            There is an unfinished run and neither `resume` nor `overwrite`, or it belongs to something else.
        """
        if self.folder.exists() and not self.journal.exists():
            foreign = [path.name for path in self.folder.iterdir() if not path.name.startswith(".tmp-")]
            if foreign:
                raise OutputError(f"{self.folder} is in the way: it is no unfinished run (it holds {foreign[0]!r})")
        elif overwrite and not resume:
            self.remove()
        if self.journal.exists():
            if not resume:
                raise OutputError(
                    f"{self.folder} holds an unfinished run: go on with --resume, or start again with --overwrite"
                )
            compare_identities(self.folder, read_json(self.journal), identity)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.journal, identity)
        return len(self.done_parts())

    def _path(self, index: int, column: Column | None = None) -> Path:
        return self.folder / (f"part-{index:06d}.json" if column is None else f"part-{index:06d}.{column.stem}.bin")

    def is_done(self, index: int) -> bool:
        """Whether a part is complete on disk."""
        return self._path(index).exists()

    def done_parts(self) -> set[int]:
        """Numbers of the parts that are complete on disk."""
        return {int(path.stem.removeprefix("part-")) for path in self.folder.glob("part-*.json")}

    def write(self, index: int, rows: Sequence[Row], finished: Iterator[tuple[int, Vectors]]) -> Iterator[int]:
        """Write a part while its vectors arrive, in any order; each lands at its final place in the part's files.

        Yields the index of every row written, so that the caller can show progress.
        """
        offsets = np.concatenate([[0], np.cumsum([row.length for row in rows], dtype=np.int64)])
        handles = {column: open(self._path(index, column), "wb") for column in self.columns}  # noqa: SIM115
        try:
            for place, vectors in finished:
                for column, handle in handles.items():
                    first, n_vectors = _span(place, column, offsets)
                    values = np.ascontiguousarray(vectors[column], dtype=self.dtype)
                    if values.size != n_vectors * self.dim:
                        raise AssertionError(f"{values.shape} does not fill {n_vectors} vectors of {self.dim}")
                    handle.seek(first * self.dim * self.dtype.itemsize)
                    handle.write(values.data)
                yield place
            for handle in handles.values():
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise OutputError(f"{self.folder}: part {index} cannot be written: {error}") from None
        finally:
            for handle in handles.values():
                handle.close()
        sync_folder(self.folder)
        fields = ("name", "identifier", "header", "length", "sequence_sha256")
        write_json(self._path(index), {"rows": [[getattr(row, name) for name in fields] for row in rows]})

    def parts(self, n_parts: int) -> Iterator[StoredPart]:
        """Every part in input order, its files open while it is the current one.

        Raises
        ------
        OutputError
            A part is missing or shorter than it says.
        """
        for index in range(n_parts):
            if not self.is_done(index):
                raise OutputError(f"{self.folder}: part {index} of {n_parts} is missing; run again with --resume")
            rows = [Row(*values) for values in read_json(self._path(index))["rows"]]
            n_residues = sum(row.length for row in rows)
            handles: dict[Column, BinaryIO] = {}
            try:
                for column in self.columns:
                    path = self._path(index, column)
                    expected = (n_residues if column.per_residue else len(rows)) * self.dim * self.dtype.itemsize
                    size = path.stat().st_size if path.exists() else 0
                    if size != expected:
                        raise OutputError(f"{path}: {size} bytes, expected {expected}; start again with --overwrite")
                    handles[column] = open(path, "rb")  # noqa: SIM115
                yield StoredPart(rows, handles, self.dim, self.dtype)
            finally:
                for handle in handles.values():
                    handle.close()

    def remove(self) -> None:
        """Delete the folder, if there is one, once the outputs stand."""
        if self.journal.exists():
            shutil.rmtree(self.folder)


def read_json(path: Path) -> Any:
    """A JSON file of ours.

    Raises
    ------
    OutputError
        It is not readable JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be read: {error}; start again with --overwrite") from None


def compare_identities(where: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse what was made from another model, other settings or other input.

    Raises
    ------
    OutputError
        Names the first differing entries with both values.
    """
    differing = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
    if differing:
        shown = "; ".join(
            f"{key}: {_short(found.get(key))} there, {_short(wanted.get(key))} now" for key in differing[:4]
        )
        raise OutputError(
            f"{where} belongs to another run ({shown}): nothing of it is reused; start again with --overwrite, "
            "or choose another output"
        )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:24] + "..."
