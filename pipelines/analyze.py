"""`protlat analyze transfer`: labels for proteins from the nearest labelled ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator
from typing_extensions import Self

from protlat import __version__
from protlat.config import Config
from protlat.devices import set_threads
from protlat.errors import ConfigError, OutputError
from protlat.inference.account import require_given, require_inputs
from protlat.inference.label_tables import read_labels
from protlat.inference.label_transfer import LabelTransfer, Metric, Task, Transferred
from protlat.inference.reader import EmbeddingFile, load_embeddings
from protlat.inference.tables import open_table, require_table_ending
from protlat.reporting import format_seconds, progress

_QUERIES_HELD = 4096


class TransferConfig(Config):
    """Settings of `protlat analyze transfer`."""

    query: str = ""
    """Embedding file of the proteins to label: .h5, .npz, .parquet or .h5ad."""
    reference: str = ""
    """Embedding file of labelled proteins, by the same model."""
    labels: str = ""
    """Table with the columns identifier and label: .csv, or tab-separated."""
    label_column: str = "label"
    """Column of the labels."""
    output: str = ""
    """Table to write: .tsv, .json or .parquet; '-' writes tab-separated text to standard output."""
    metric: Metric = "cosine"
    """cosine or euclidean."""
    bandwidth: float | Literal["auto"] = "auto"
    """h of the kernel exp(-d^2 / (2 h^2)); auto: of a grid, the best at predicting references that are left out."""
    task: Task | Literal["auto"] = "auto"
    """classes or numbers; auto: numbers when all labels are numbers and not just a few whole ones."""
    kind: Literal["mean", "cls"] | None = None
    """Vectors to compare; null: the one that the files hold."""
    layer: int | None = None
    """Layer to compare; null: the one that the files hold."""
    far: float = Field(0.99, gt=0, lt=1)
    """Share of the references' own nearest distances beyond which a protein is noted as far."""
    seed: int = Field(0, ge=0)
    """Picks the references that are left out in turn, when there are more than 2,048."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null: all."""
    overwrite: bool = False
    """Replace an output that is there."""

    @field_validator("bandwidth")
    @classmethod
    def _positive(cls, bandwidth: float | Literal["auto"]) -> float | Literal["auto"]:
        if bandwidth != "auto" and not 0 < bandwidth < float("inf"):
            raise ValueError("a bandwidth is a positive number, or auto")
        return bandwidth

    def checked(self) -> Self:
        """These settings, once what they name is there.

        Raises
        ------
        ConfigError
            Something is not given, or the output's ending names no table.
        OutputError
            The output exists.
        SequenceError
            An input does not exist.
        """
        given = {"QUERY": self.query, "--reference": self.reference, "--labels": self.labels, "-o": self.output}
        require_given(given)
        require_table_ending(self.output)
        require_inputs([self.query, self.reference, self.labels])
        if self.output != "-" and Path(self.output).exists() and not self.overwrite:
            raise OutputError(f"{self.output} is there already; --overwrite replaces it")
        return self


def run(config: TransferConfig) -> dict[str, Any]:
    """Transfer labels and write the table.

    Returns
    -------
    dict
        The closing account.

    Raises
    ------
    ConfigError
        Settings, files or labels do not fit together.
    OutputError
        A file is damaged, or the output exists.
    """
    config = config.checked()
    set_threads(config.threads)
    start_s = time.monotonic()
    labels = read_labels(config.labels, config.label_column)
    with _open(config.reference, config) as reference, _open(config.query, config) as queries:
        _require_same_model(reference, queries)
        names, vectors = _labelled(reference, labels)
        task = None if config.task == "auto" else config.task
        width = None if config.bandwidth == "auto" else config.bandwidth
        chosen = [labels[name] for name in names]
        model = LabelTransfer(vectors, chosen, config.metric, width, task, config.far, config.seed)
        n_queries, n_far, n_same = _write(config, model, queries, names, chosen)
        n_unlabelled = len(reference) - len(names)
    shown = "accuracy" if model.task == "classes" else "variance explained"
    plain = "of the commonest class" if model.task == "classes" else "of the mean"
    return {
        "queries": n_queries,
        "far from every reference": n_far,
        "queries that are references too": n_same,
        "labelled references": len(names),
        "references without a label": n_unlabelled,
        "labels without a reference": len(labels) - len(names),
        "labels are": f"{len(model.classes)} classes" if model.task == "classes" else "numbers",
        "bandwidth": f"{model.bandwidth:.4g} ({'chosen by leaving one out' if width is None else 'given'})",
        f"{shown}, leaving one reference out": f"{model.left_out['score']:.3f}",
        f"{shown} {plain}": f"{model.left_out['plain']:.3f}",
        "time": format_seconds(time.monotonic() - start_s),
        "written": "standard output" if config.output == "-" else config.output,
    }


def _open(path: str, config: TransferConfig) -> EmbeddingFile:
    file = load_embeddings(path, config.kind, config.layer)
    if file.column.per_residue:
        file.close()
        raise ConfigError(f"{path}: holds one vector per residue; embed with --include mean, or name --kind mean")
    return file


def _require_same_model(reference: EmbeddingFile, queries: EmbeddingFile) -> None:
    ours, theirs = (file.metadata.get("model_hash") for file in (queries, reference))
    if ours and theirs and ours != theirs:
        raise ConfigError(
            f"{queries.path} and {reference.path} were embedded by different models "
            f"({queries.metadata['model_name']}, {reference.metadata['model_name']}): embed both with one"
        )
    kinds = [(file.column.kind, file.column.layer) for file in (queries, reference)]
    if kinds[0] != kinds[1] and queries.metadata.get("columns") and reference.metadata.get("columns"):
        raise ConfigError(
            f"{queries.path} holds {kinds[0][0]} of layer {kinds[0][1]}, {reference.path} {kinds[1][0]} of layer "
            f"{kinds[1][1]}: name one with --kind and --layer"
        )


def _labelled(reference: EmbeddingFile, labels: dict[str, str]) -> tuple[list[str], np.ndarray]:
    names, vectors = [], []
    for name, vector in reference:
        if name in labels:
            names.append(name)
            vectors.append(np.asarray(vector, dtype=np.float32))
    if not names:
        raise ConfigError(
            f"no identifier of {reference.path} has a label: the file's first is {reference.identifiers[0]!r}, the "
            f"table's {next(iter(labels), 'absent')!r}"
        )
    return names, np.stack(vectors)


def _batches(queries: EmbeddingFile, dim: int) -> Iterator[tuple[list[str], np.ndarray]]:
    names: list[str] = []
    vectors: list[np.ndarray] = []
    for name, vector in queries:
        if vector.shape != (dim,):
            raise ConfigError(f"{queries.path}: {name} has a vector of shape {vector.shape}; the references have {dim}")
        names.append(name)
        vectors.append(vector)
        if len(names) == _QUERIES_HELD:
            yield names, np.stack(vectors)
            names, vectors = [], []
    if names:
        yield names, np.stack(vectors)


def _write(
    config: TransferConfig, model: LabelTransfer, queries: EmbeddingFile, names: list[str], labels: list[str]
) -> tuple[int, int, int]:
    """Rows of the table; how many queries there were, how many far, how many with a reference's identifier."""
    numbers = model.task == "numbers"
    columns: dict[str, type] = {
        "identifier": str, "value" if numbers else "label": float if numbers else str,
        "spread" if numbers else "probability": float, "n_effective": float, "nearest": str, "nearest_label": str,
        "nearest_distance": float, "note": str,
    }  # fmt: skip
    metadata = {
        "versions": {"protlat": __version__},
        "metric": config.metric,
        "bandwidth": model.bandwidth,
        "reference": config.reference,
        "leave_one_out": model.left_out,
    }
    known = set(names)
    n_far = n_same = 0
    with (
        open_table(config.output, columns, metadata) as add,
        progress("transfer", len(queries), "proteins") as line,
    ):
        for batch, vectors in _batches(queries, model.dim):
            for name, found in zip(batch, model.transfer(vectors), strict=True):
                n_far += found.far
                n_same += name in known
                add(_row(name, found, names, labels))
            line.advance(len(batch))
        n_queries = len(queries)
    return n_queries, n_far, n_same


def _row(name: str, found: Transferred, names: list[str], labels: list[str]) -> tuple[str | float, ...]:
    at = found.nearest
    note = "far" if found.far else ""
    return (
        name, found.label, found.certainty, found.n_effective, names[at], labels[at], found.distance, note,
    )  # fmt: skip


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["analyze", *sys.argv[1:]])
