"""From a head's outputs to probabilities: temperature and threshold, fitted on the validation split."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, logsumexp, softmax

from protlat.tasks.data import MISSING, TaskType

# Beyond these a validation split is too small, or separated perfectly, and says nothing about confidence.
_LOWEST, _HIGHEST = 0.05, 20.0
_MAX_LABELS = 300_000


def probabilities(logits: np.ndarray, task_type: TaskType, temperature: float = 1.0) -> np.ndarray:
    """Probabilities of the classes: of one among all, or, for multi-label tasks, of each by itself.

    Parameters
    ----------
    logits : numpy.ndarray, shape (N, C), float
    task_type : TaskType
    temperature : float

    Returns
    -------
    numpy.ndarray, shape (N, C), float64
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    return expit(scaled) if task_type == "sequence_multilabel" else softmax(scaled, axis=1)


def negative_log_likelihood(logits: np.ndarray, labels: np.ndarray, task_type: TaskType, temperature: float) -> float:
    """Mean over known labels, in nats.

    Parameters
    ----------
    logits : numpy.ndarray, shape (N, C)
    labels : numpy.ndarray, shape (N,) int64, or (N, C) bool for multi-label tasks
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    if task_type == "sequence_multilabel":
        # log(1 + e^x) - x y
        return float(np.mean(np.logaddexp(0.0, scaled) - scaled * labels))
    known = labels != MISSING
    picked = log_softmax(scaled[known], axis=1)[np.arange(int(known.sum())), labels[known]]
    return float(-picked.mean())


def fit_temperature(logits: np.ndarray, labels: np.ndarray, task_type: TaskType, seed: int = 0) -> float:
    """The temperature of the highest likelihood; 1 without labels.

    Of more than 300,000 labels, as many random ones are used.

    References
    ----------
    Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    known = np.arange(len(labels)) if labels.ndim == 2 else np.flatnonzero(labels != MISSING)
    if not len(known):
        return 1.0
    limit = max(_MAX_LABELS // logits.shape[1], 1) if labels.ndim == 2 else _MAX_LABELS
    if len(known) > limit:
        known = np.sort(np.random.default_rng(seed).choice(known, limit, replace=False))
    chosen, truth = np.asarray(logits[known], dtype=np.float64), labels[known]

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(chosen, truth, task_type, float(np.exp(log_temperature)))

    found = minimize_scalar(loss, bounds=(np.log(_LOWEST), np.log(_HIGHEST)), method="bounded")
    return float(np.exp(found.x))


def fit_threshold(probability: np.ndarray, labels: np.ndarray) -> float:
    """The threshold of the highest F over proteins (the maximum that Fmax reports) among 99 of them; 0.5 without labels.

    Parameters
    ----------
    probability : numpy.ndarray, shape (N, C)
    labels : numpy.ndarray, shape (N, C), bool; or (N,), int64, of two classes, where F is that of class 1 over all labels

    Notes
    -----
    Precision is averaged over proteins with at least one prediction, recall over proteins with at least one label.
    """
    if labels.ndim == 1:
        return _binary_threshold(probability[labels != MISSING, 1], labels[labels != MISSING])
    has_label = labels.any(1)
    if not has_label.any():
        return 0.5
    best, best_f = 0.5, -1.0
    for threshold in np.arange(1, 100) / 100:
        predicted = probability >= threshold
        right = (predicted & labels).sum(1)
        n_predicted = predicted.sum(1)
        some = n_predicted > 0
        if not some.any():
            continue
        precision = float((right[some] / n_predicted[some]).mean())
        recall = float((right[has_label] / labels.sum(1)[has_label]).mean())
        f = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        if f > best_f:
            best, best_f = float(threshold), f
    return best


def _binary_threshold(probability: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import precision_recall_curve

    if not labels.any():
        return 0.5
    precision, recall, thresholds = precision_recall_curve(labels == 1, probability)
    f = 2 * precision[:-1] * recall[:-1] / np.maximum(precision[:-1] + recall[:-1], 1e-12)
    return float(thresholds[int(f.argmax())])


def calibration_error(probability: np.ndarray, labels: np.ndarray, n_bins: int = 15) -> float:
    """Expected calibration error of the likeliest class: mean |confidence - accuracy| over bins of equal confidence.

    Parameters
    ----------
    probability : numpy.ndarray, shape (N, C)
    labels : numpy.ndarray, shape (N,), int64
        `MISSING` is left out.

    References
    ----------
    Guo et al. 2017, equation 3.
    """
    known = labels != MISSING
    if not known.any():
        return float("nan")
    confidence = probability[known].max(1)
    right = probability[known].argmax(1) == labels[known]
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    counts = np.bincount(bins, minlength=n_bins)
    gaps = np.abs(np.bincount(bins, confidence, n_bins) - np.bincount(bins, right, n_bins))
    return float(gaps.sum() / counts.sum())


def log_probabilities_of_votes(votes: np.ndarray) -> np.ndarray:
    """Logits of neighbour votes (N, C), smoothed so that no class is impossible."""
    smooth = votes + 0.5 / max(votes.shape[1], 1)
    return np.log(smooth) - logsumexp(np.log(smooth), axis=1, keepdims=True)
