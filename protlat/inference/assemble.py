"""From finished parts to output files, in input order, several formats in one pass."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from protlat.errors import ConfigError, OutputError
from protlat.files import atomic_path
from protlat.inference.naming import Column, labelled
from protlat.inference.parts import WorkFolder
from protlat.inference.writers import Writer, columns_for, format_of, open_writer, require_format


@dataclass(frozen=True)
class Output:
    """One file to write.

    Attributes
    ----------
    path : Path
    format_name : str
    columns : tuple of Column
        What it holds, labelled.
    """

    path: Path
    format_name: str
    columns: tuple[Column, ...]


def plan_outputs(
    paths: Sequence[str], format_name: str | None, columns: Sequence[Column], separate: bool = False
) -> list[Output]:
    """Which file holds which columns.

    Parameters
    ----------
    paths : sequence of str
        As given by the user; formats follow their endings unless `format_name` is given.
    format_name : str or None
    columns : sequence of Column
        Everything that is computed.
    separate : bool
        One file per column, named ``STEM.KIND.ENDING`` or ``STEM.KIND_layer_N.ENDING``.

    Raises
    ------
    ConfigError
        No file can hold a column, two outputs are one file, or a format is unknown.
    MissingExtraError
        A format's package is missing.
    """
    outputs: list[Output] = []
    for text in paths:
        path, name = Path(text), format_of(text, format_name)
        require_format(name)
        fitting = columns_for(name, columns)
        if not fitting:
            raise ConfigError(
                f"-o {text}: {name} has one row per sequence and cannot hold per_tok; use .h5 or .npz, or --include mean"
            )
        if separate and len(columns) > 1:
            labels = [(column, labels_of(columns)[column]) for column in fitting]
            outputs += [
                Output(path.with_name(f"{path.stem}.{label}{path.suffix}"), name, tuple(labelled([column])))
                for column, label in labels
            ]
        else:
            outputs.append(Output(path, name, tuple(labelled(fitting))))
    held = {(column.kind, column.layer) for output in outputs for column in output.columns}
    homeless = sorted({column.kind for column in columns if (column.kind, column.layer) not in held})
    if homeless:
        raise ConfigError(
            f"--include {' '.join(homeless)}: none of the outputs can hold it; add one ending in .h5 or .npz"
        )
    resolved = [output.path.absolute() for output in outputs]
    for path in resolved:
        if resolved.count(path) > 1:
            raise ConfigError(f"-o {path}: given twice")
    return outputs


def labels_of(columns: Sequence[Column]) -> dict[Column, str]:
    """Label of each column among several."""
    return {plain: marked.label for plain, marked in zip(columns, labelled(columns), strict=True)}


def assemble(
    work: WorkFolder, n_parts: int, n_rows: int, outputs: Sequence[Output], metadata: dict[str, Any]
) -> Iterator[int]:
    """Write every output; each appears under its name only when all of it is on disk.

    Yields the number of sequences of every part written, for progress.

    Raises
    ------
    OutputError
        A part is missing or damaged, or a file cannot be written.
    """
    for output in outputs:
        # What a killed run was writing: only the parts are taken up again.
        for stale in output.path.parent.glob(f".tmp-*-{glob.escape(output.path.name)}"):
            stale.unlink(missing_ok=True)
    try:
        with ExitStack() as stack:
            writers: list[tuple[Output, Writer]] = []
            for output in outputs:
                temporary = stack.enter_context(atomic_path(output.path))
                writer = open_writer(
                    temporary, output.format_name, output.columns, work.dim, work.dtype, n_rows, work.folder
                )
                writers.append((output, writer))
            for part in work.parts(n_parts):
                for index, row in enumerate(part.rows):
                    vector = _Cached(part.vector, index)
                    for _, writer in writers:
                        writer.add(row, vector)
                yield len(part.rows)
            for output, writer in writers:
                writer.close({**metadata, "columns": [column.to_plain() for column in output.columns]})
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{', '.join(str(output.path) for output in outputs)}: cannot be written: {error}") from None


class _Cached:
    """A row's vectors, each read from disk once however many files take it."""

    def __init__(self, read: Any, index: int) -> None:
        self._read = partial(read, index)
        self._held: dict[tuple[str, int], np.ndarray] = {}

    def __call__(self, column: Column) -> np.ndarray:
        key = (column.kind, column.layer)
        if key not in self._held:
            self._held[key] = self._read(Column(*key))
        return self._held[key]
