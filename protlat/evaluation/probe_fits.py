"""Fits behind the probes, and the votes of neighbours."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from protlat.config import Config
from protlat.evaluation.calibration import log_probabilities_of_votes, negative_log_likelihood
from protlat.tasks.data import TaskType

Rows = tuple[np.ndarray, np.ndarray]
"""Vectors (N, E), float32, and their labels."""
# Strengths tried, strongest regularisation first, so that every fit starts from the one before.
_INVERSE_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
_RIDGE_STRENGTHS = (1e5, 1e4, 1e3, 1e2, 1e1, 1.0, 0.1)
_NEIGHBOURS = (1, 3, 5, 10, 20, 50)


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


@dataclass(frozen=True)
class ProbeTask:
    """What a fit has to know of a task."""

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


def subset(x: np.ndarray, y: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    if len(x) <= n:
        return x, y
    keep = np.sort(rng.choice(len(x), n, replace=False))
    return x[keep], y[keep]


def _fit_logistic(
    task: ProbeTask, few: Rows, held: Rows, whole: Rows, rng: np.random.Generator
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


def _logistic(task: ProbeTask, x: np.ndarray, y: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
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


def _one_label(task: ProbeTask, x: np.ndarray, y: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    n_true = int(y.sum())
    if n_true in (0, len(y)):
        return np.zeros(x.shape[1], np.float32), float(np.log((n_true + 0.5) / (len(y) - n_true + 0.5)))
    model = _fitted_logistic(task, x, y, strength)
    return model.coef_[0].astype(np.float32), float(model.intercept_[0])


def _fitted_logistic(task: ProbeTask, x: np.ndarray, y: np.ndarray, strength: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weights = "balanced" if task.balanced else None
    model = LogisticRegression(C=strength, max_iter=task.settings.max_iterations, tol=1e-3, class_weight=weights)
    with warnings.catch_warnings():
        # One that is stopped early is regularised a little more, and the choice on valid sees it as it is.
        warnings.simplefilter("ignore", category=ConvergenceWarning)
        return model.fit(x, y)


def _fit_ridge(
    task: ProbeTask, few: Rows, held: Rows, whole: Rows, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    losses = {}
    for strength in _RIDGE_STRENGTHS:
        losses[strength] = task.loss(_ridge(few, strength).predict(held[0])[:, None], held[1])
    strength = min(losses, key=lambda s: losses[s]) * len(whole[0]) / len(few[0])
    model = _ridge(whole, strength)
    tensors = {"weight": model.coef_[None].astype(np.float32), "bias": np.array([model.intercept_], np.float32)}
    return tensors, {"regularisation": strength, "validation loss by strength": _plain(losses)}


def _ridge(rows: Rows, strength: float) -> Any:
    from sklearn.linear_model import Ridge

    return Ridge(alpha=strength, solver="cholesky").fit(rows[0].astype(np.float64), rows[1].astype(np.float64))


def _fit_neighbours(
    task: ProbeTask, few: Rows, held: Rows, whole: Rows, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    from sklearn.neighbors import NearestNeighbors

    counts = [k for k in _NEIGHBOURS if k <= len(few[0])]
    distance, index = NearestNeighbors(algorithm="brute").fit(few[0]).kneighbors(held[0], counts[-1])
    losses = {
        k: task.loss(vote(distance[:, :k], few[1][index[:, :k]], task.type, task.n_outputs), held[1]) for k in counts
    }
    best = min(losses, key=lambda k: losses[k])
    x, y = subset(*whole, task.settings.max_neighbours, rng)
    labels = y.astype(np.uint8) if y.ndim == 2 else y
    tensors = {"known": x.astype(np.float16), "labels": labels, "k": np.array(best, np.int64)}
    return tensors, {"neighbours": best, "rows kept": len(x), "validation loss by neighbours": _plain(losses)}


_Fitter = Callable[..., tuple[dict[str, np.ndarray], dict[str, Any]]]
FITTERS: dict[str, _Fitter] = {"logistic": _fit_logistic, "ridge": _fit_ridge, "knn": _fit_neighbours}


def vote(distance: np.ndarray, labels: np.ndarray, task_type: TaskType, n_outputs: int) -> np.ndarray:
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


def standardised(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return (np.asarray(rows, dtype=np.float32) - mean) * scale


def _plain(value: Any) -> Any:
    """Numbers that JSON can hold."""
    if isinstance(value, dict):
        return {f"{key:g}": round(float(item), 5) for key, item in value.items()}
    return float(value)
