"""Metrics of weighted samples from sums per protein, so that a thousand resamplings cost one matrix product.

Each function prepares sums per example once and returns a `Resampler`: weights (B, N) in, metric (B,) out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse

from protlat.evaluation.bootstrap import Resampler

N_BINS = 2048
"""Predictions are binned to this many quantiles where a ranking is resampled; fewer distinct values stay exact."""
N_THRESHOLDS = 100

FromCounts = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From true positives, labels and predictions by class, each (B, C), to a metric (B,)."""


def _sums(owner: np.ndarray, columns: np.ndarray, n_examples: int, n_columns: int) -> sparse.csr_array:
    """Counts by example and column, shape (N, K)."""
    ones = np.ones(len(owner))
    return sparse.csr_array(sparse.coo_array((ones, (owner, columns)), shape=(n_examples, n_columns)))


def _ratio(above: np.ndarray, below: np.ndarray, otherwise: float = np.nan) -> np.ndarray:
    return np.divide(above, below, out=np.full(np.broadcast(above, below).shape, otherwise), where=below != 0)


def class_counts(
    truth: np.ndarray, predicted: np.ndarray, owner: np.ndarray, n_examples: int, n_classes: int, finish: FromCounts
) -> Resampler:
    """Metrics of one class per label.

    Parameters
    ----------
    truth, predicted : numpy.ndarray, shape (M,), int64
    owner : numpy.ndarray, shape (M,), int64
        Example of each label.
    """
    hit = truth == predicted
    parts = [
        _sums(owner[hit], truth[hit], n_examples, n_classes),
        _sums(owner, truth, n_examples, n_classes),
        _sums(owner, predicted, n_examples, n_classes),
    ]
    return lambda weights: finish(*(np.asarray(weights @ part) for part in parts))


def label_counts(truth: np.ndarray, predicted: np.ndarray, finish: FromCounts) -> Resampler:
    """Metrics of any number of classes per example; `truth` and `predicted` are bool (N, C)."""
    parts = [sparse.csr_array(table.astype(np.float64)) for table in (truth & predicted, truth, predicted)]
    return lambda weights: finish(*(np.asarray(weights @ part) for part in parts))


def accuracy(hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    return _ratio(hits.sum(1), labels.sum(1))


def balanced_accuracy(hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Mean recall of the classes that occur."""
    return _ratio(_ratio(hits, labels, 0.0).sum(1), (labels > 0).sum(1))


def _f1(hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    return _ratio(2 * hits, labels + predictions, 0.0)


def macro_f1(hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Mean over the classes that occur or are predicted, as scikit-learn takes them."""
    return _ratio(_f1(hits, labels, predictions).sum(1), ((labels + predictions) > 0).sum(1))


def weighted_f1(hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    return _ratio((_f1(hits, labels, predictions) * labels).sum(1), labels.sum(1))


def micro_f1(hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    return _ratio(2 * hits.sum(1), labels.sum(1) + predictions.sum(1))


def positive_f1(hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """F1 of class 1."""
    return _f1(hits, labels, predictions)[:, 1]


def matthews(hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Correlation of any number of classes; 0 where one side is constant.

    References
    ----------
    Gorodkin 2004, Comparing two K-category assignments by a K-category correlation coefficient, equation 8.
    """
    total = labels.sum(1)
    above = hits.sum(1) * total - (labels * predictions).sum(1)
    below = (total**2 - (predictions**2).sum(1)) * (total**2 - (labels**2).sum(1))
    return _ratio(above, np.sqrt(np.maximum(below, 0.0)), 0.0)


def _bins(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Bin of each value, ascending, and the number of bins."""
    edges = np.unique(values)
    if len(edges) > N_BINS:
        edges = np.unique(np.quantile(values, np.arange(N_BINS) / N_BINS))
    return np.searchsorted(edges, values, side="right") - 1, len(edges)


def ranking(
    positive: np.ndarray,
    score: np.ndarray,
    owner: np.ndarray,
    n_examples: int,
    finish: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Resampler:
    """Metrics of an order, from histograms per example; `positive` is bool (M,), `score` (M,)."""
    bins, n_bins = _bins(score)
    good = _sums(owner[positive], bins[positive], n_examples, n_bins)
    bad = _sums(owner[~positive], bins[~positive], n_examples, n_bins)
    return lambda weights: finish(np.asarray(weights @ good), np.asarray(weights @ bad))


def area_under_curve(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """ROC AUC from counts by bin, ascending, each (B, G); ties count half."""
    below = np.cumsum(bad, axis=1) - bad / 2
    return _ratio((good * below).sum(1), good.sum(1) * bad.sum(1))


def average_precision(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Sum over thresholds of precision times gain in recall, from counts by bin, ascending, each (B, G)."""
    found = np.cumsum(good[:, ::-1], axis=1)
    shown = found + np.cumsum(bad[:, ::-1], axis=1)
    return _ratio((good[:, ::-1] * _ratio(found, shown, 0.0)).sum(1), good.sum(1))


def mean_over_classes(parts: list[Resampler]) -> Resampler:
    """Mean of several resamplers, undefined ones left out."""

    def resample(weights: np.ndarray) -> np.ndarray:
        table = np.stack([part(weights) for part in parts])
        known = np.isfinite(table)
        return _ratio(np.where(known, table, 0.0).sum(0), known.sum(0))

    return resample


def protein_fmax(truth: np.ndarray, probability: np.ndarray) -> Resampler:
    """Fmax over thresholds of 0.01 to 1; `truth` bool (N, C), `probability` (N, C).

    References
    ----------
    Radivojac et al. 2013, A large-scale evaluation of computational protein function prediction, equations 1 to 4.
    """
    n_examples, n_classes = truth.shape
    # Step of 0.01 in which a probability lies; the small addition keeps 0.29 * 100 = 28.999... in step 29.
    steps = np.clip(np.floor(probability * N_THRESHOLDS + 1e-6), 0, N_THRESHOLDS).astype(np.int64)
    cells = np.arange(n_examples)[:, None] * (N_THRESHOLDS + 1) + steps

    def shown_from(chosen: np.ndarray) -> np.ndarray:
        counts = np.bincount(cells[chosen], minlength=n_examples * (N_THRESHOLDS + 1))
        upward: np.ndarray = counts.reshape(n_examples, -1)[:, ::-1].cumsum(1)[:, ::-1][:, 1:]
        return upward.astype(np.float64)

    hits, shown = shown_from(truth), shown_from(np.ones((n_examples, n_classes), dtype=bool))
    wanted = truth.sum(1).astype(np.float64)
    known = wanted > 0
    precision = _ratio(hits, shown, 0.0) * known[:, None]
    answered = (shown > 0) * known[:, None].astype(np.float64)
    recall = _ratio(hits, wanted[:, None], 0.0)

    def resample(weights: np.ndarray) -> np.ndarray:
        p = _ratio(weights @ precision, weights @ answered, 0.0)
        r = _ratio(weights @ recall, (weights @ known.astype(np.float64))[:, None], 0.0)
        best: np.ndarray = _ratio(2 * p * r, p + r, 0.0).max(1)
        return best

    return resample


def moments(
    truth: np.ndarray, predicted: np.ndarray, owner: np.ndarray, n_examples: int, finish: Callable[..., np.ndarray]
) -> Resampler:
    """Metrics from sums of powers; `finish` receives (n, t, p, tt, pp, tp, ee), each (B,), about the common mean."""
    # About the mean of the truth: sums of squares of large values would lose the digits that matter.
    t, p = truth - truth.mean(), predicted - truth.mean()
    columns = [np.ones_like(t), t, p, t * t, p * p, t * p, (t - p) ** 2]
    sums = np.stack([np.bincount(owner, weights=column, minlength=n_examples) for column in columns], axis=1)
    return lambda weights: finish(*(weights @ sums).T)


def pearson(
    n: np.ndarray, t: np.ndarray, p: np.ndarray, tt: np.ndarray, pp: np.ndarray, tp: np.ndarray, ee: np.ndarray
) -> np.ndarray:
    spread = np.maximum(n * tt - t * t, 0.0) * np.maximum(n * pp - p * p, 0.0)
    return _ratio(n * tp - t * p, np.sqrt(spread))


def r_squared(
    n: np.ndarray, t: np.ndarray, p: np.ndarray, tt: np.ndarray, pp: np.ndarray, tp: np.ndarray, ee: np.ndarray
) -> np.ndarray:
    return 1.0 - _ratio(ee, tt - _ratio(t * t, n))


def mean_squared_error(
    n: np.ndarray, t: np.ndarray, p: np.ndarray, tt: np.ndarray, pp: np.ndarray, tp: np.ndarray, ee: np.ndarray
) -> np.ndarray:
    return _ratio(ee, n)


def root_mean_squared_error(
    n: np.ndarray, t: np.ndarray, p: np.ndarray, tt: np.ndarray, pp: np.ndarray, tp: np.ndarray, ee: np.ndarray
) -> np.ndarray:
    return np.sqrt(_ratio(ee, n))


def mean_of(values: np.ndarray, owner: np.ndarray, n_examples: int) -> Resampler:
    """Mean of a number per label."""
    totals = np.bincount(owner, weights=values, minlength=n_examples)
    counts = np.bincount(owner, minlength=n_examples).astype(np.float64)
    return lambda weights: _ratio(weights @ totals, weights @ counts)


def rank_correlation(truth: np.ndarray, predicted: np.ndarray, owner: np.ndarray) -> Resampler:
    """Spearman: ranks are taken anew in every sample, ties share their mean rank.

    Notes
    -----
    With weights w, the mean rank of a value is the weight below it plus (its own weight + 1) / 2. Values are sorted once,
    so a sample costs O(M).
    """
    _, first = np.unique(truth, return_inverse=True)
    _, second = np.unique(predicted, return_inverse=True)

    def ranks(codes: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        own = np.bincount(codes, weights=drawn)
        below = np.cumsum(own) - own
        placed: np.ndarray = (below + (own + 1) / 2)[codes]
        return placed

    def one(drawn: np.ndarray) -> float:
        total = drawn.sum()
        middle = (total + 1) / 2
        a, b = ranks(first, drawn) - middle, ranks(second, drawn) - middle
        spread = np.sqrt((drawn * a * a).sum() * (drawn * b * b).sum())
        return float((drawn * a * b).sum() / spread) if spread > 0 else float("nan")

    return lambda weights: np.array([one(row[owner]) for row in weights])
