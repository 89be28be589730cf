"""Probes: plain models of scikit-learn on frozen vectors, kept without pickle."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from protlat.errors import CheckpointError, ConfigError, SequenceError
from protlat.evaluation.calibration import probabilities
from protlat.evaluation.probe_fits import FITTERS, ProbeConfig, ProbeTask, standardised, subset, vote
from protlat.inference.feature_cache import Ragged
from protlat.tasks.data import MISSING, TRAIN, VALID, LabelledSplit, TaskData, TaskType

__all__ = [
    "PROBE_KINDS",
    "Features",
    "Probe",
    "ProbeConfig",
    "fit_probe",
    "labelled_rows",
    "probe_kind",
    "require_learnable",
]

log = logging.getLogger(__name__)
ProbeKind = Literal["logistic", "ridge", "knn"]
PROBE_KINDS = ("logistic", "ridge", "knn")
Features = np.ndarray | Ragged
_ROWS_AT_ONCE = 50_000
# One logistic regression a class: beyond this the neighbours answer sooner and no worse.
_MAX_LOGISTIC_LABELS = 200


@dataclass
class Probe:
    """A fitted probe.

    Attributes
    ----------
    kind : str
    type : TaskType
    n_outputs : int
        Classes; 1 for values.
    tensors : dict of str to numpy.ndarray
        ``mean`` and ``scale`` of the input; ``weight`` (C, E) and ``bias`` (C,), or ``known`` rows and their ``labels``.
    facts : dict
        What was chosen, and on how many rows, for the report.
    """

    kind: str
    type: TaskType
    n_outputs: int
    tensors: dict[str, np.ndarray]
    facts: dict[str, Any] = field(default_factory=dict)
    _neighbours: Any = field(default=None, repr=False, compare=False)

    def outputs(self, rows: np.ndarray) -> np.ndarray:
        """Logits or values of rows (N, E): (N, C), float32."""
        parts = [self._outputs(rows[start : start + _ROWS_AT_ONCE]) for start in range(0, len(rows), _ROWS_AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros((0, self.n_outputs), np.float32)

    def predict(self, features: Features) -> np.ndarray:
        """Probabilities (N, C) or values (N,) of every row: of sequences, or of residues end to end."""
        outputs = self.outputs(features.rows if isinstance(features, Ragged) else features)
        return outputs[:, 0] if self.type.endswith("value") else probabilities(outputs, self.type)

    def _outputs(self, rows: np.ndarray) -> np.ndarray:
        x = standardised(rows, self.tensors["mean"], self.tensors["scale"])
        if self.kind != "knn":
            return (x @ self.tensors["weight"].T + self.tensors["bias"]).astype(np.float32)
        if self._neighbours is None:
            from sklearn.neighbors import NearestNeighbors

            self._neighbours = NearestNeighbors(algorithm="brute").fit(self.tensors["known"].astype(np.float32))
        k = int(self.tensors["k"].item())
        distance, index = self._neighbours.kneighbors(x, k)
        return vote(distance, self.tensors["labels"][index], self.type, self.n_outputs)

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """Everything for ``head.safetensors``."""
        return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in self.tensors.items()}

    @staticmethod
    def from_tensors(kind: str, task_type: TaskType, n_outputs: int, tensors: Mapping[str, torch.Tensor]) -> Probe:
        """A probe from its file.

        Raises
        ------
        CheckpointError
            Tensors are missing or do not fit each other.
        """
        wanted = ("known", "labels", "k") if kind == "knn" else ("weight", "bias")
        missing = [name for name in ("mean", "scale", *wanted) if name not in tensors]
        if missing:
            raise CheckpointError(f"head.safetensors: {', '.join(missing)} missing; a {kind} probe needs it")
        arrays = {name: value.numpy() for name, value in tensors.items()}
        if kind != "knn" and arrays["weight"].shape != (n_outputs, len(arrays["mean"])):
            raise CheckpointError(
                f"head.safetensors: weight has shape {arrays['weight'].shape}, but head.json says {(n_outputs, len(arrays['mean']))}"
            )
        return Probe(kind, task_type, n_outputs, arrays)


def fit_probe(
    data: TaskData,
    features: Mapping[str, Features],
    kind: str = "auto",
    seed: int = 0,
    config: ProbeConfig | None = None,
    balanced: bool = False,
) -> Probe:
    """Fit on train; the strength of regularisation, or the number of neighbours, is chosen on valid.

    Parameters
    ----------
    data : TaskData
        With `TRAIN` and `VALID`; without the latter a tenth of the rows of train stands in.
    features : mapping of str to Ragged or numpy.ndarray
        By split: of residues for residue tasks, else one row a sequence, shape (N, E).
    kind : str
        See `ProbeConfig.kind`.
    seed : int
        Of the subsamples.
    config : ProbeConfig, optional
    balanced : bool
        Weigh classes by the inverse of how often they come.

    Raises
    ------
    ConfigError
        The kind does not fit the task.
    SequenceError
        No label to learn from, or one class only.
    """
    settings = config or ProbeConfig()
    rng = np.random.default_rng(seed)
    task = ProbeTask(data.type, max(len(data.classes), 1), balanced, settings)
    chosen = probe_kind(kind, data.type, len(data.classes))
    x, y = labelled_rows(data.splits[TRAIN], features[TRAIN], settings.max_rows, rng)
    require_learnable(data, y)
    if VALID in data.splits and len(data.splits[VALID]):
        x_valid, y_valid = labelled_rows(data.splits[VALID], features[VALID], settings.max_selection_rows, rng)
    else:
        x_valid, y_valid = np.zeros((0, x.shape[1]), np.float32), y[:0]
    held_out = len(x_valid) == 0
    rest = (x, y)
    if held_out:
        order = rng.permutation(len(x))
        n_valid = max(len(x) // 10, 1)
        x_valid, y_valid = x[order[:n_valid]], y[order[:n_valid]]
        rest = (x[order[n_valid:]], y[order[n_valid:]])
    mean = x.mean(0, dtype=np.float64).astype(np.float32)
    spread = x.std(0, dtype=np.float64).astype(np.float32)
    scale = np.where(spread > 1e-6, 1 / np.maximum(spread, 1e-6), 1.0).astype(np.float32)
    few = subset(standardised(rest[0], mean, scale), rest[1], settings.max_selection_rows, rng)
    held = subset(standardised(x_valid, mean, scale), y_valid, settings.max_selection_rows, rng)
    fitted, facts = FITTERS[chosen](task, few, held, (standardised(x, mean, scale), y), rng)
    facts |= {"rows fitted on": len(x), "rows in train": _n_labelled(data.splits[TRAIN])}
    if held_out:
        facts["chosen on"] = "a tenth of the training rows, as there is no validation split"
    return Probe(chosen, data.type, task.n_outputs, {"mean": mean, "scale": scale, **fitted}, facts)


def labelled_rows(
    split: LabelledSplit, features: Features, max_rows: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a label, float32 (M, E), and their labels; of residues at most `max_rows`, drawn at random."""
    if not isinstance(features, Ragged):
        labels = np.asarray(split.labels)
        keep = np.flatnonzero(_is_known(labels))
        return np.asarray(features, dtype=np.float32)[keep], labels[keep]
    labels = np.concatenate([np.asarray(values) for values in split.labels]) if len(split) else np.zeros(0, np.int64)
    keep = np.flatnonzero(_is_known(labels))
    if len(keep) > max_rows:
        keep = np.sort(rng.choice(keep, max_rows, replace=False))
    return np.asarray(features.rows[keep], dtype=np.float32), labels[keep]


def require_learnable(data: TaskData, labels: np.ndarray) -> None:
    """Check that there is something to learn.

    Raises
    ------
    SequenceError
        No label, or one class, or one value only.
    """
    if not len(labels):
        raise SequenceError(f"task {data.name}: no label in the training set; there is nothing to learn from")
    if data.type.endswith("value"):
        if float(labels.min()) == float(labels.max()):
            raise SequenceError(
                f"task {data.name}: every label of the training set is {labels[0]:g}; there is nothing to learn"
            )
    elif labels.ndim == 2:
        if not labels.any():
            raise SequenceError(
                f"task {data.name}: no sequence of the training set has a class; there is nothing to learn"
            )
    elif len(found := np.unique(labels)) < 2:
        raise SequenceError(
            f"task {data.name}: the training set holds one class only ({data.classes[int(found[0])]!r}); at least two are needed"
        )


def probe_kind(kind: str, task_type: TaskType, n_classes: int) -> str:
    """The kind of probe that is meant; see `ProbeConfig.kind`.

    Raises
    ------
    ConfigError
        It does not fit the task.
    """
    is_value = task_type.endswith("value")
    if kind == "auto":
        if is_value:
            return "ridge"
        return "knn" if task_type == "sequence_multilabel" and n_classes > _MAX_LOGISTIC_LABELS else "logistic"
    if kind not in PROBE_KINDS:
        raise ConfigError(f"probe {kind!r} is unknown; known: auto, {', '.join(PROBE_KINDS)}")
    if kind == "logistic" and is_value:
        raise ConfigError("a logistic probe predicts classes, and this task has values; use ridge or knn")
    if kind == "ridge" and not is_value:
        raise ConfigError("a ridge probe predicts values, and this task has classes; use logistic or knn")
    return kind


def _is_known(labels: np.ndarray) -> np.ndarray:
    if labels.dtype == bool:
        return np.ones(len(labels), bool)
    return np.isfinite(labels) if labels.dtype.kind == "f" else labels != MISSING


def _n_labelled(split: LabelledSplit) -> int:
    return sum(int(_is_known(np.asarray(labels)).sum()) for labels in _label_arrays(split))


def _label_arrays(split: LabelledSplit) -> Iterator[np.ndarray]:
    if isinstance(split.labels, np.ndarray):
        yield split.labels
    else:
        yield from (np.asarray(labels) for labels in split.labels)
