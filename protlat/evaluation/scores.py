"""Metrics of tasks by name, each with a 95 % interval over proteins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from protlat.errors import ConfigError
from protlat.evaluation import resamplers
from protlat.evaluation.bootstrap import N_BOOTSTRAP, Resampler, Score, bootstrap_score

Need = Literal["class", "probability", "value"]
Truth = np.ndarray | Sequence[np.ndarray]


@dataclass(frozen=True)
class Labelled:
    """Labels and predictions of a split end to end, missing labels left out.

    Attributes
    ----------
    truth : numpy.ndarray
        int64 (M,), float64 (M,), or bool (N, C) where an example has any number of classes.
    predicted : numpy.ndarray
        By what the metric needs: int64 (M,) or bool (N, C); probabilities (M,), (M, C) or (N, C); values (M,).
    owner : numpy.ndarray, shape (M,), int64
        Example of each label, counted over examples with a label.
    n_examples : int
    """

    truth: np.ndarray
    predicted: np.ndarray
    owner: np.ndarray
    n_examples: int

    @property
    def n_classes(self) -> int:
        return int(max(self.truth.max(initial=0), self.predicted.max(initial=0))) + 1


@dataclass(frozen=True)
class Metric:
    """A way to score.

    Attributes
    ----------
    name, title : str
    needs : str
        What is predicted: "class", "probability" or "value".
    higher_is_better : bool
    exact : callable
        The metric of a whole split, from scikit-learn or scipy where they have it.
    resampler : callable
        Prepares the metric of weighted samples.
    kinds : tuple of str
        Truths it can score: "class", "multilabel", "value".
    """

    name: str
    title: str
    needs: Need
    exact: Callable[[Labelled], float]
    resampler: Callable[[Labelled], Resampler]
    kinds: tuple[str, ...] = ("class",)
    higher_is_better: bool = True

    def __call__(self, truth: Truth, prediction: Truth) -> float:
        """The metric of a whole split; see `score`."""
        return score(self, truth, prediction, n_bootstrap=0).value


METRICS: dict[str, Metric] = {}
ALIASES = {"q3": "accuracy", "q8": "accuracy", "q10": "accuracy", "auc": "roc_auc", "auroc": "roc_auc", "ap": "average_precision"}  # fmt: skip
DEFAULTS = {
    "sequence_class": "accuracy",
    "sequence_multilabel": "fmax",
    "sequence_value": "spearman",
    "residue_class": "accuracy",
    "residue_value": "spearman",
}


def metric(name: str | Metric) -> Metric:
    """A metric by its name or an alias.

    Raises
    ------
    ConfigError
        No such metric.
    """
    if isinstance(name, Metric):
        return name
    key = name.lower().replace("-", "_").replace(" ", "_")
    key = ALIASES.get(key, key)
    if key not in METRICS:
        raise ConfigError(f"metric {name!r} is unknown; known: {', '.join([*METRICS, *ALIASES])}")
    return METRICS[key]


def score(
    name: str | Metric, truth: Truth, prediction: Truth, *, n_bootstrap: int = N_BOOTSTRAP, seed: int = 0
) -> Score:
    """Score predictions with an interval from resampled proteins.

    Parameters
    ----------
    name : str or Metric
    truth : numpy.ndarray or sequence of numpy.ndarray
        Labels of a split as `protlat.tasks.data.LabelledSplit` has them: int (N,), float (N,), bool (N, C), or N arrays
        (L,) of int or float. -1 and nan are missing: not scored.
    prediction : numpy.ndarray or sequence of numpy.ndarray
        By `Metric.needs`. Class: int as the truth (bool (N, C) for many classes per example); probabilities of all classes
        are taken as their argmax. Probability: (N, C), or (N,) of class 1 for two classes; per residue N arrays (L, C) or
        (L,). Value: float as the truth.
    n_bootstrap : int
        Resampled sets; 0 leaves the interval out.
    seed : int
        The same for scores that will be compared.

    Returns
    -------
    Score

    Raises
    ------
    ConfigError
        The metric is unknown or does not fit the labels.
    ValueError
        Truth and prediction have other lengths, or a prediction is not a finite number.

    Notes
    -----
    Sets are drawn protein by protein, since residues of one protein are alike. Rankings (ROC AUC, average precision) of
    resampled sets are taken from histograms of 2,048 quantile bins; the score itself is exact.

    Examples
    --------
    >>> print(score("accuracy", np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]), n_bootstrap=0).value)
    0.75
    """
    chosen = metric(name)
    labelled = _flatten(chosen, truth, prediction)
    n_labels = int(labelled.truth.size if labelled.truth.ndim == 1 else len(labelled.truth))
    value = float(chosen.exact(labelled)) if n_labels else float("nan")
    if n_bootstrap == 0 or not n_labels or np.isnan(value):
        return bootstrap_score(value, lambda weights: weights[:, 0], labelled.n_examples, n_labels, 0, seed)
    return bootstrap_score(value, chosen.resampler(labelled), labelled.n_examples, n_labels, n_bootstrap, seed)


def _flatten(chosen: Metric, truth: Truth, prediction: Truth) -> Labelled:
    if len(truth) != len(prediction):
        raise ValueError(f"{len(truth)} examples have labels, but {len(prediction)} have predictions")
    if isinstance(truth, np.ndarray):
        labels, predicted = truth, np.asarray(prediction)
        owner = np.arange(len(labels))
    else:
        for index, (one, other) in enumerate(zip(truth, prediction, strict=True)):
            if len(one) != len(other):
                raise ValueError(f"example {index}: {len(one)} labels, but {len(other)} predictions")
        labels = np.concatenate([np.asarray(one) for one in truth]) if len(truth) else np.empty(0, dtype=np.int64)
        predicted = np.concatenate([np.asarray(one) for one in prediction]) if len(truth) else labels
        owner = np.repeat(np.arange(len(truth)), [len(one) for one in truth])
    kind = (
        "multilabel" if labels.dtype == bool and labels.ndim == 2 else "value" if labels.dtype.kind == "f" else "class"
    )
    if kind not in chosen.kinds:
        raise ConfigError(
            f"metric {chosen.name!r} scores {' and '.join(_KIND_NAMES[k] for k in chosen.kinds)}, "
            f"not {_KIND_NAMES[kind]}; use one of {', '.join(m.name for m in METRICS.values() if kind in m.kinds)}"
        )
    if kind != "multilabel":
        labels = labels.astype(np.float64 if kind == "value" else np.int64)
        known = ~np.isnan(labels) if kind == "value" else labels >= 0
        labels, predicted, owner = labels[known], predicted[known], owner[known]
    _, owner = np.unique(owner, return_inverse=True)
    predicted = _as_needed(chosen, kind, labels, predicted)
    return Labelled(labels, predicted, owner, int(owner.max(initial=-1)) + 1)


_KIND_NAMES = {"class": "classes", "multilabel": "sets of classes", "value": "values"}


def _as_needed(chosen: Metric, kind: str, labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    if predicted.dtype.kind == "f" and not np.isfinite(predicted).all():
        raise ValueError(f"{int((~np.isfinite(predicted)).sum()):,} predictions are not finite numbers")
    if kind == "multilabel":
        if predicted.shape != labels.shape:
            raise ValueError(f"labels of shape {labels.shape}, but predictions of shape {predicted.shape}")
        if chosen.needs == "class" and predicted.dtype != bool:
            raise ConfigError(f"metric {chosen.name!r} needs chosen classes (bool); apply a threshold to probabilities")
        return predicted if chosen.needs == "class" else predicted.astype(np.float64)
    if chosen.needs == "class":
        if predicted.ndim == 2:
            predicted = predicted.argmax(1)
        if predicted.dtype.kind not in "iub":
            raise ConfigError(f"metric {chosen.name!r} needs classes or the probabilities of all classes")
        return predicted.astype(np.int64)
    if chosen.needs == "value" and predicted.shape != labels.shape:
        raise ValueError(f"labels of shape {labels.shape}, but values of shape {predicted.shape}")
    return predicted.astype(np.float64)


def _columns(labelled: Labelled) -> list[tuple[np.ndarray, np.ndarray]]:
    """(positive, score) of each class that some labels have and others have not; one class of two is enough."""
    truth, scores = labelled.truth, labelled.predicted
    if truth.ndim == 2:
        pairs = [(truth.ravel(), scores.ravel())]
    elif scores.ndim == 1 or scores.shape[1] == 2:
        if truth.max(initial=0) > 1:
            raise ConfigError(f"labels of {truth.max() + 1} classes need the probabilities of all of them, not of one")
        pairs = [(truth == 1, scores if scores.ndim == 1 else scores[:, 1])]
    else:
        pairs = [(truth == code, scores[:, code]) for code in range(scores.shape[1])]
    return [(positive, value) for positive, value in pairs if positive.any() and not positive.all()]


def _ranked(function: str) -> Callable[[Labelled], float]:
    def exact(labelled: Labelled) -> float:
        from sklearn import metrics

        parts = [getattr(metrics, function)(positive, value) for positive, value in _columns(labelled)]
        return float(np.mean(parts)) if parts else float("nan")

    return exact


def _ranked_again(finish: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Labelled], Resampler]:
    def prepare(labelled: Labelled) -> Resampler:
        truth, owner, n = labelled.truth, labelled.owner, labelled.n_examples
        if truth.ndim == 2:
            owner = np.repeat(owner, truth.shape[1])
        parts = [resamplers.ranking(positive, value, owner, n, finish) for positive, value in _columns(labelled)]
        return resamplers.mean_over_classes(parts)

    return prepare


def _counted(finish: resamplers.FromCounts) -> Callable[[Labelled], Resampler]:
    def prepare(labelled: Labelled) -> Resampler:
        truth, predicted = labelled.truth, labelled.predicted
        if truth.ndim == 2:
            return resamplers.label_counts(truth, predicted, finish)
        n_classes = max(labelled.n_classes, 2)
        return resamplers.class_counts(truth, predicted, labelled.owner, labelled.n_examples, n_classes, finish)

    return prepare


def _from_sklearn(function: str, **options: object) -> Callable[[Labelled], float]:
    def exact(labelled: Labelled) -> float:
        from sklearn import metrics

        truth, predicted = labelled.truth, labelled.predicted
        if truth.ndim == 2:
            used = (truth | predicted).any(0)
            if not used.any():
                return float("nan")
            truth, predicted = truth[:, used], predicted[:, used]
        return float(getattr(metrics, function)(truth, predicted, **options))

    return exact


def _balanced(labelled: Labelled) -> float:
    from sklearn.metrics import recall_score

    present = np.unique(labelled.truth)
    return float(recall_score(labelled.truth, labelled.predicted, labels=present, average="macro", zero_division=0))


def _positive_f1(labelled: Labelled) -> float:
    from sklearn.metrics import f1_score

    if labelled.n_classes > 2:
        raise ConfigError("metric 'f1' scores class 1 of two; for more classes use macro_f1 or weighted_f1")
    return float(f1_score(labelled.truth, labelled.predicted, labels=[1], average="macro", zero_division=0))


def _correlation(function: str) -> Callable[[Labelled], float]:
    def exact(labelled: Labelled) -> float:
        from scipy import stats

        truth, predicted = labelled.truth, labelled.predicted
        if len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(predicted) == 0:
            return float("nan")
        with warnings.catch_warnings():
            # Values that hardly differ: the correlation is still the best there is.
            warnings.simplefilter("ignore", stats.NearConstantInputWarning)
            return float(getattr(stats, function)(truth, predicted).statistic)

    return exact


def _r_squared(labelled: Labelled) -> float:
    from sklearn.metrics import r2_score

    if len(labelled.truth) < 2 or np.ptp(labelled.truth) == 0:
        return float("nan")
    return float(r2_score(labelled.truth, labelled.predicted))


def _summed(finish: Callable[..., np.ndarray]) -> Callable[[Labelled], Resampler]:
    return lambda one: resamplers.moments(one.truth, one.predicted, one.owner, one.n_examples, finish)


def _absolute(one: Labelled) -> Resampler:
    return resamplers.mean_of(np.abs(one.truth - one.predicted), one.owner, one.n_examples)


def _fmax(labelled: Labelled) -> float:
    return float(resamplers.protein_fmax(labelled.truth, labelled.predicted)(np.ones((1, labelled.n_examples)))[0])


def _register(*metrics: Metric) -> None:
    METRICS.update({one.name: one for one in metrics})


_SETS = ("class", "multilabel")
_VALUES = ("value",)
_ZERO = {"zero_division": 0}
_register(
    Metric("accuracy", "accuracy", "class", _from_sklearn("accuracy_score"), _counted(resamplers.accuracy)),
    Metric("balanced_accuracy", "balanced accuracy", "class", _balanced, _counted(resamplers.balanced_accuracy)),
    Metric("f1", "F1 of the positive class", "class", _positive_f1, _counted(resamplers.positive_f1)),
    Metric("macro_f1", "macro F1", "class", _from_sklearn("f1_score", average="macro", **_ZERO), _counted(resamplers.macro_f1), _SETS),
    Metric("weighted_f1", "weighted F1", "class", _from_sklearn("f1_score", average="weighted", **_ZERO), _counted(resamplers.weighted_f1), _SETS),
    Metric("micro_f1", "micro F1", "class", _from_sklearn("f1_score", average="micro", **_ZERO), _counted(resamplers.micro_f1), _SETS),
    Metric("mcc", "Matthews correlation", "class", _from_sklearn("matthews_corrcoef"), _counted(resamplers.matthews)),
    Metric("roc_auc", "ROC AUC", "probability", _ranked("roc_auc_score"), _ranked_again(resamplers.area_under_curve)),
    Metric("average_precision", "average precision", "probability", _ranked("average_precision_score"), _ranked_again(resamplers.average_precision), _SETS),
    Metric("fmax", "Fmax", "probability", _fmax, lambda one: resamplers.protein_fmax(one.truth, one.predicted), ("multilabel",)),
    Metric("spearman", "Spearman", "value", _correlation("spearmanr"), lambda one: resamplers.rank_correlation(one.truth, one.predicted, one.owner), _VALUES),
    Metric("pearson", "Pearson", "value", _correlation("pearsonr"), _summed(resamplers.pearson), _VALUES),
    Metric("r2", "R2", "value", _r_squared, _summed(resamplers.r_squared), _VALUES),
    Metric("mse", "mean squared error", "value", _from_sklearn("mean_squared_error"), _summed(resamplers.mean_squared_error), _VALUES, False),
    Metric("rmse", "root mean squared error", "value", _from_sklearn("root_mean_squared_error"), _summed(resamplers.root_mean_squared_error), _VALUES, False),
    Metric("mae", "mean absolute error", "value", _from_sklearn("mean_absolute_error"), _absolute, _VALUES, False),
)  # fmt: skip
