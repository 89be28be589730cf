"""Reading embedding files back, one vector at a time, whatever their format."""

from __future__ import annotations

import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from protlat.errors import ConfigError, OutputError
from protlat.inference.naming import Column, escape_name, unescape_name


def load_embeddings(path: str | Path, kind: str | None = None, layer: int | None = None) -> EmbeddingFile:
    """Open an embedding file for reading; vectors stay on disk until asked for.

    Parameters
    ----------
    path : path
        ``.h5``, ``.npz``, ``.parquet`` or ``.h5ad``, as `protlat embed` writes them; HDF5 files of other tools with one
        dataset per protein at the root open too.
    kind : str, optional
        "mean", "per_tok" or "cls"; needed when the file holds several.
    layer : int, optional
        Layer number; needed when the file holds several of the kind.

    Returns
    -------
    EmbeddingFile
        Iterates over (identifier, array) in the file's order; ``file[identifier]`` gives one array.

    Raises
    ------
    OutputError
        The file is missing, damaged or holds no embeddings.
    ConfigError
        The file does not hold that kind or layer, or holds several and none was named.

    Examples
    --------
    >>> with load_embeddings("proteins.h5") as vectors:  # doctest: +SKIP
    ...     for identifier, vector in vectors:
    ...         print(identifier, vector.shape)
    """
    path = Path(path)
    if not path.is_file():
        raise OutputError(f"{path}: no such file")
    readers: tuple[type[EmbeddingFile], ...] = (HDF5File, NpzFile, ParquetFile, AnnDataFile)
    return {reader.format_name: reader for reader in readers}[_sniff(path)](path, kind, layer)


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Metadata of an embedding file: model, settings, versions, counts; {} for files of other tools.

    Raises
    ------
    OutputError
        The file is missing or not an embedding file.
    """
    path = Path(path)
    name = _sniff(path)
    try:
        if name == "npz":
            with zipfile.ZipFile(path) as archive:
                return dict(json.loads(archive.comment or b"{}"))
        if name == "parquet":
            import pyarrow.parquet as pq

            stored = pq.ParquetFile(path).metadata.metadata or {}
            return dict(json.loads(stored.get(b"protlat", b"{}")))
        import h5py

        with h5py.File(path, "r") as file:
            if name == "h5ad":
                text = file["uns/protlat"][()].decode() if "uns/protlat" in file else "{}"
                return dict(json.loads(text))
            found = dict(json.loads(file.attrs.get("protlat", "{}")))
            if not found and "model_name" in file.attrs:
                found = {"model_name": str(file.attrs["model_name"])}
            return found
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise OutputError(f"{path}: cannot be read as embeddings: {error}") from None


def _sniff(path: Path) -> str:
    """Format by the first bytes; only h5 and h5ad need the ending to tell them apart."""
    try:
        with open(path, "rb") as handle:
            start = handle.read(8)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if start.startswith(b"PK"):
        return "npz"
    if start.startswith(b"PAR1"):
        return "parquet"
    if start == b"\x89HDF\r\n\x1a\n":
        return "h5ad" if path.suffix.lower() == ".h5ad" else "h5"
    raise OutputError(f"{path}: not an embedding file (HDF5, npz or parquet); it starts with {start!r}")


class EmbeddingFile(ABC):
    """One column of an embedding file, read lazily.

    Attributes
    ----------
    path : Path
    metadata : dict
        What `read_metadata` gives.
    columns : list of Column
        Every kind and layer in the file.
    column : Column
        The one that is read.
    format_name : str
        "h5", "npz", "parquet" or "h5ad".
    """

    format_name: ClassVar[str]

    def __init__(self, path: Path, kind: str | None, layer: int | None) -> None:
        self.path = path
        self.metadata = read_metadata(path)
        self.columns = [Column(c["kind"], c["layer"], c["label"]) for c in self.metadata.get("columns", [])]
        try:
            self._open()
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise OutputError(f"{path}: cannot be read as embeddings: {error}") from None
        fitting = [c for c in self.columns if kind in (None, c.kind) and layer in (None, c.layer)]
        if len(fitting) != 1:
            self.close()
            there = ", ".join(f"{c.kind} of layer {c.layer}" for c in self.columns) or "one unnamed kind"
            problem = "name one with kind= and layer=" if fitting else f"not kind={kind!r}, layer={layer!r}"
            raise ConfigError(f"{path}: holds {there}; {problem}")
        self.column = fitting[0]
        self._select()

    @abstractmethod
    def _open(self) -> None:
        """Open the file; files of other tools get their one column here."""

    @abstractmethod
    def _select(self) -> None:
        """Prepare reading `column`."""

    @property
    @abstractmethod
    def identifiers(self) -> list[str]:
        """Names in the file's order; repeated identifiers end in #2, #3 ..."""

    @abstractmethod
    def __getitem__(self, identifier: str) -> np.ndarray:
        """Vector of one sequence: (E,), or (L, E) for ``per_tok``; KeyError when it is not there."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __len__(self) -> int:
        return len(self.identifiers)

    def __contains__(self, identifier: object) -> bool:
        return identifier in self.identifiers

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        for identifier in self.identifiers:
            yield identifier, self[identifier]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HDF5File(EmbeddingFile):
    """Datasets at the root, or in one group per column."""

    format_name = "h5"

    def _open(self) -> None:
        import h5py

        self._file = h5py.File(self.path, "r")
        if not self.columns:
            first = next(iter(self._file.values()), None)
            if not isinstance(first, h5py.Dataset):
                raise ValueError("no dataset at the root")
            self.columns = [Column("per_tok" if first.ndim == 2 else "mean", -1)]

    def _select(self) -> None:
        self._group = self._file[self.column.label] if self.column.label else self._file

    @property
    def identifiers(self) -> list[str]:
        return [unescape_name(name) for name in self._group]

    def __len__(self) -> int:
        return len(self._group)

    def __contains__(self, identifier: object) -> bool:
        return isinstance(identifier, str) and escape_name(identifier) in self._group

    def __getitem__(self, identifier: str) -> np.ndarray:
        return np.asarray(self._group[escape_name(identifier)])

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        for name, dataset in self._group.items():
            yield unescape_name(name), np.asarray(dataset)

    def close(self) -> None:
        self._file.close()


class NpzFile(EmbeddingFile):
    """Members of a zip archive."""

    format_name = "npz"

    def _open(self) -> None:
        self._zip = zipfile.ZipFile(self.path)
        if not self.columns:
            self.columns = [Column("mean", -1)]

    def _select(self) -> None:
        prefix = f"{self.column.label}/" if self.column.label else ""
        members = [name for name in self._zip.namelist() if name.startswith(prefix)]
        self._members = {unescape_name(name[len(prefix) :].removesuffix(".npy")): name for name in members}

    @property
    def identifiers(self) -> list[str]:
        return list(self._members)

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._members

    def __getitem__(self, identifier: str) -> np.ndarray:
        with self._zip.open(self._members[identifier]) as handle:
            return np.asarray(np.lib.format.read_array(handle, allow_pickle=False))

    def close(self) -> None:
        self._zip.close()


class ParquetFile(EmbeddingFile):
    """Rows of a table, one row group in memory at a time."""

    format_name = "parquet"

    def _open(self) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(self.path)
        if "identifier" not in self._file.schema_arrow.names or not self.columns:
            raise ValueError("no columns written by protlat embed")
        names = self._file.read(["identifier"])["identifier"].to_pylist()
        self._rows = {name: row for row, name in enumerate(names)}
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self._ends = np.cumsum(sizes)

    def _select(self) -> None:
        self._held: tuple[int, np.ndarray] | None = None

    @property
    def identifiers(self) -> list[str]:
        return list(self._rows)

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._rows

    def __getitem__(self, identifier: str) -> np.ndarray:
        row = self._rows[identifier]
        group = int(np.searchsorted(self._ends, row, side="right"))
        if self._held is None or self._held[0] != group:
            name = self.column.label or self.column.kind
            stored = self._file.read_row_group(group, [name])[name].combine_chunks()
            values = stored.values if hasattr(stored, "values") else stored.chunk(0).values
            self._held = (group, values.to_numpy().reshape(len(stored), -1))
        start = int(self._ends[group - 1]) if group else 0
        return self._held[1][row - start].copy()

    def close(self) -> None:
        self._file.close()


class AnnDataFile(EmbeddingFile):
    """X and obsm of an AnnData file, read without the anndata package."""

    format_name = "h5ad"

    def _open(self) -> None:
        import h5py

        self._file = h5py.File(self.path, "r")
        if not self.columns:
            self.columns = [Column("mean", -1)]
        obs = self._file["obs"]
        index = obs[obs.attrs["_index"]]
        self._rows = {name.decode(): row for row, name in enumerate(index[()])}

    def _select(self) -> None:
        in_obsm = self.column.label and f"obsm/{self.column.label}" in self._file
        self._matrix = self._file[f"obsm/{self.column.label}" if in_obsm else "X"]

    @property
    def identifiers(self) -> list[str]:
        return list(self._rows)

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._rows

    def __getitem__(self, identifier: str) -> np.ndarray:
        return np.asarray(self._matrix[self._rows[identifier]])

    def close(self) -> None:
        self._file.close()
