"""Probes: plain models of scikit-learn on frozen vectors, kept without pickle."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from protlat.config import Config
from protlat.errors import CheckpointError, ConfigError, SequenceError
from protlat.evaluation.calibration import log_probabilities_of_votes, negative_log_likelihood, probabilities
from protlat.inference.feature_cache import Ragged
from protlat.tasks.data import MISSING, TRAIN, VALID, LabelledSplit, TaskData, TaskType

log = logging.getLogger(__name__)
ProbeKind = Literal["logistic", "ridge", "knn"]
PROBE_KINDS = ("logistic", "ridge", "knn")
Features = np.ndarray | Ragged
# Strengths tried, strongest regularisation first, so that every fit starts from the one before.
_INVERSE_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
_RIDGE_STRENGTHS = (1e5, 1e4, 1e3, 1e2, 1e1, 1.0, 0.1)
_NEIGHBOURS = (1, 3, 5, 10, 20, 50)
_ROWS_AT_ONCE = 50_000
# One logistic regression a class: beyond this the neighbours answer sooner and no worse.
_MAX_LOGISTIC_LABELS = 200


class ProbeConfig(Config):
    """How a probe is fitted."""

    kind: Literal["auto", "logistic", "ridge", "knn"] = "auto"
    """auto: logistic for classes (knn for more than 200 labels that exclude no other), ridge for values."""
    max_rows: int = Field(100_000, ge=100)
    """Residues that a probe of residues is fitted on, drawn at random with the seed where there are more."""
    max_selection_rows: int = Field(20_000, ge=100)
    """Rows of training and of validation by which the strength of regularisation is chosen; the fit then uses all."""
    max_neighbours: int = Field(20_000, ge=100)
    """Rows that knn keeps; a random subset where there are more."""
    max_iterations: int = Field(200, ge=1)
    """Iterations of a logistic regression."""


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
        x = _standardised(rows, self.tensors["mean"], self.tensors["scale"])
        if self.kind != "knn":
            return (x @ self.tensors["weight"].T + self.tensors["bias"]).astype(np.float32)
        if self._neighbours is None:
            from sklearn.neighbors import NearestNeighbors

            self._neighbours = NearestNeighbors(algorithm="brute").fit(self.tensors["known"].astype(np.float32))
        k = int(self.tensors["k"].item())
        distance, index = self._neighbours.kneighbors(x, k)
        return _vote(distance, self.tensors["labels"][index], self.type, self.n_outputs)

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
    task = _Task(data.type, max(len(data.classes), 1), balanced, settings)
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
    few = _subset(_standardised(rest[0], mean, scale), rest[1], settings.max_selection_rows, rng)
    held = _subset(_standardised(x_valid, mean, scale), y_valid, settings.max_selection_rows, rng)
    fitted, facts = _FITTERS[chosen](task, few, held, (_standardised(x, mean, scale), y), rng)
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


@dataclass(frozen=True)
class _Task:
    type: TaskType
    n_outputs: int
    balanced: bool
    settings: ProbeConfig

    @property
    def is_value(self) -> bool:
        return self.type.endswith("value")

    def loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        """What a choice is made by: mean square error, or negative log-likelihood."""
        if self.is_value:
            return float(np.mean((outputs[:, 0] - labels) ** 2))
        return negative_log_likelihood(outputs, labels, self.type, 1.0)


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


def _subset(x: np.ndarray, y: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    if len(x) <= n:
        return x, y
    keep = np.sort(rng.choice(len(x), n, replace=False))
    return x[keep], y[keep]


def _fit_logistic(
    task: _Task, few: _Rows, held: _Rows, whole: _Rows, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    losses = {}
    for strength in _INVERSE_STRENGTHS:
        weight, bias = _logistic(task, *few, strength)
        losses[strength] = task.loss(held[0] @ weight.T + bias, held[1])
    # The penalty stands beside a sum over rows: the choice carries over to more rows when it is scaled with them.
    strength = min(losses, key=lambda s: losses[s]) * len(few[0]) / len(whole[0])
    weight, bias = _logistic(task, *whole, strength)
    return {"weight": weight, "bias": bias}, {
        "inverse regularisation": strength,
        "validation loss by strength": _plain(losses),
    }


def _logistic(task: _Task, x: np.ndarray, y: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights (C, E) and biases (C,), float32; classes that do not occur are as unlikely as one label in all would be."""
    if task.type == "sequence_multilabel":
        rows = [_one_label(task, x, y[:, label], strength) for label in range(task.n_outputs)]
        return np.stack([weight for weight, _ in rows]), np.array([bias for _, bias in rows], dtype=np.float32)
    present = np.unique(y)
    weight = np.zeros((task.n_outputs, x.shape[1]), np.float32)
    bias = np.full(task.n_outputs, -np.log(len(y) + 1.0), np.float32)
    if len(present) == 1:  # a small subset of a lopsided task
        bias[present] = 0.0
        return weight, bias
    model = _fitted_logistic(task, x, y, strength)
    if len(present) == 2:
        weight[present], bias[present] = (
            np.stack([-model.coef_[0] / 2, model.coef_[0] / 2]),
            [-model.intercept_[0] / 2, model.intercept_[0] / 2],
        )
    else:
        weight[present], bias[present] = model.coef_, model.intercept_
    return weight, bias


def _one_label(task: _Task, x: np.ndarray, y: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    n_true = int(y.sum())
    if n_true in (0, len(y)):
        return np.zeros(x.shape[1], np.float32), float(np.log((n_true + 0.5) / (len(y) - n_true + 0.5)))
    model = _fitted_logistic(task, x, y, strength)
    return model.coef_[0].astype(np.float32), float(model.intercept_[0])


def _fitted_logistic(task: _Task, x: np.ndarray, y: np.ndarray, strength: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weights = "balanced" if task.balanced else None
    model = LogisticRegression(C=strength, max_iter=task.settings.max_iterations, tol=1e-3, class_weight=weights)
    with warnings.catch_warnings():
        # One that is stopped early is regularised a little more, and the choice on valid sees it as it is.
        warnings.simplefilter("ignore", category=ConvergenceWarning)
        return model.fit(x, y)


def _fit_ridge(
    task: _Task, few: _Rows, held: _Rows, whole: _Rows, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    losses = {}
    for strength in _RIDGE_STRENGTHS:
        losses[strength] = task.loss(_ridge(few, strength).predict(held[0])[:, None], held[1])
    strength = min(losses, key=lambda s: losses[s]) * len(whole[0]) / len(few[0])
    model = _ridge(whole, strength)
    tensors = {"weight": model.coef_[None].astype(np.float32), "bias": np.array([model.intercept_], np.float32)}
    return tensors, {"regularisation": strength, "validation loss by strength": _plain(losses)}


def _ridge(rows: _Rows, strength: float) -> Any:
    from sklearn.linear_model import Ridge

    return Ridge(alpha=strength, solver="cholesky").fit(rows[0].astype(np.float64), rows[1].astype(np.float64))


def _fit_neighbours(
    task: _Task, few: _Rows, held: _Rows, whole: _Rows, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    from sklearn.neighbors import NearestNeighbors

    counts = [k for k in _NEIGHBOURS if k <= len(few[0])]
    distance, index = NearestNeighbors(algorithm="brute").fit(few[0]).kneighbors(held[0], counts[-1])
    losses = {
        k: task.loss(_vote(distance[:, :k], few[1][index[:, :k]], task.type, task.n_outputs), held[1]) for k in counts
    }
    best = min(losses, key=lambda k: losses[k])
    x, y = _subset(*whole, task.settings.max_neighbours, rng)
    labels = y.astype(np.uint8) if y.ndim == 2 else y
    tensors = {"known": x.astype(np.float16), "labels": labels, "k": np.array(best, np.int64)}
    return tensors, {"neighbours": best, "rows kept": len(x), "validation loss by neighbours": _plain(losses)}


_Rows = tuple[np.ndarray, np.ndarray]
_Fitter = Callable[..., tuple[dict[str, np.ndarray], dict[str, Any]]]
_FITTERS: dict[str, _Fitter] = {"logistic": _fit_logistic, "ridge": _fit_ridge, "knn": _fit_neighbours}


def _vote(distance: np.ndarray, labels: np.ndarray, task_type: TaskType, n_outputs: int) -> np.ndarray:
    """Outputs from neighbours weighted by the inverse of their distance; labels (N, k) or (N, k, C)."""
    weight = 1 / np.maximum(distance, 1e-6)
    weight /= weight.sum(1, keepdims=True)
    if task_type.endswith("value"):
        return (weight * labels).sum(1, keepdims=True).astype(np.float32)
    if labels.ndim == 3:
        share = (weight[..., None] * labels).sum(1)
        n = distance.shape[1]
        share = (share * n + 0.5 / n_outputs) / (n + 1)
        return np.log(share / (1 - share)).astype(np.float32)
    votes = np.zeros((len(labels), n_outputs))
    for place in range(labels.shape[1]):
        votes[np.arange(len(labels)), labels[:, place]] += weight[:, place]
    return log_probabilities_of_votes(votes * labels.shape[1]).astype(np.float32)


def _standardised(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return (np.asarray(rows, dtype=np.float32) - mean) * scale


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


def _plain(value: Any) -> Any:
    """Numbers that JSON can hold."""
    if isinstance(value, dict):
        return {f"{key:g}": round(float(item), 5) for key, item in value.items()}
    return float(value)
