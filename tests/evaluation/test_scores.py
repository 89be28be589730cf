"""Metrics against scikit-learn, scipy and brute force; intervals against known truths."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from protlat.errors import ConfigError
from protlat.evaluation.bootstrap import difference, mean_score, weight_blocks
from protlat.evaluation.scores import METRICS, _flatten, score


def _example(kind: str, needs: str, rng: np.random.Generator, n_classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    n = 60
    if kind == "value":
        truth = rng.normal(5.0, 2.0, n).round(1)  # rounded: ties
        return truth, (truth + rng.normal(size=n)).round(1)
    if kind == "multilabel":
        truth = rng.random((n, 12)) < 0.2
        probability = np.clip(0.5 * truth + rng.random((n, 12)) * 0.6, 0, 1)
        return truth, probability if needs == "probability" else probability > 0.5
    truth = rng.integers(0, n_classes, n)
    probability = rng.random((n, n_classes)) + np.eye(n_classes)[truth] * 0.5
    return truth, probability / probability.sum(1, keepdims=True)


CASES = [(name, kind) for name, metric in METRICS.items() for kind in metric.kinds]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_weighted_sample_scores_like_the_repeated_examples(name: str, kind: str) -> None:
    # The resampled metric is computed from sums and histograms; repeating rows and asking scikit-learn is the truth.
    metric = METRICS[name]
    rng = np.random.default_rng(len(name))
    truth, predicted = _example(kind, metric.needs, rng, 2 if name == "f1" else 4)
    resampler = metric.resampler(_flatten(metric, truth, predicted))
    for seed in range(3):
        weights = np.random.default_rng(seed).multinomial(len(truth), np.full(len(truth), 1 / len(truth)))
        rows = np.repeat(np.arange(len(truth)), weights)
        assert resampler(weights[None].astype(float))[0] == pytest.approx(
            metric(truth[rows], predicted[rows]), abs=1e-9
        )


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "macro_f1", "mcc", "roc_auc", "average_precision"])
def test_residues_of_a_protein_are_drawn_together(name: str) -> None:
    rng = np.random.default_rng(1)
    truth = [rng.integers(0, 3, length) for length in (30, 5, 80, 12)]
    predicted = [rng.random((len(one), 3)) for one in truth]
    metric = METRICS[name]
    weights = np.array([[2.0, 0, 1, 1]])
    expected = metric(
        [truth[0], truth[0], truth[2], truth[3]], [predicted[0], predicted[0], predicted[2], predicted[3]]
    )
    assert metric.resampler(_flatten(metric, truth, predicted))(weights)[0] == pytest.approx(expected, abs=1e-9)


def test_values_against_sklearn_and_scipy() -> None:
    rng = np.random.default_rng(2)
    truth, probability = _example("class", "probability", rng)
    hard = probability.argmax(1)
    expected = {
        "accuracy": sk.accuracy_score(truth, hard),
        "q3": sk.accuracy_score(truth, hard),
        "balanced_accuracy": sk.balanced_accuracy_score(truth, hard),
        "macro_f1": sk.f1_score(truth, hard, average="macro"),
        "weighted_f1": sk.f1_score(truth, hard, average="weighted"),
        "mcc": sk.matthews_corrcoef(truth, hard),
        "roc_auc": sk.roc_auc_score(truth, probability, multi_class="ovr"),
    }
    for name, value in expected.items():
        assert score(name, truth, probability, n_bootstrap=0).value == pytest.approx(value), name
    values, guesses = _example("value", "value", rng)
    assert score("spearman", values, guesses).value == pytest.approx(stats.spearmanr(values, guesses).statistic)
    assert score("r2", values, guesses).value == pytest.approx(sk.r2_score(values, guesses))


def test_fmax_against_brute_force() -> None:
    rng = np.random.default_rng(3)
    truth, probability = _example("multilabel", "probability", rng)
    truth[7] = False  # not annotated: no part of recall
    best = 0.0
    for threshold in np.arange(1, 101) / 100:
        shown = probability >= threshold - 1e-8
        rows = truth.any(1)
        answered = rows & shown.any(1)
        precision = np.mean([(truth & shown)[i].sum() / shown[i].sum() for i in np.flatnonzero(answered)] or [0.0])
        recall = np.mean([(truth & shown)[i].sum() / truth[i].sum() for i in np.flatnonzero(rows)])
        if precision + recall > 0:
            best = max(best, 2 * precision * recall / (precision + recall))
    assert score("fmax", truth, probability).value == pytest.approx(best)


def test_missing_labels_are_not_scored() -> None:
    truth = [np.array([0, -1, 1]), np.array([-1, -1]), np.array([1])]
    predicted = [np.array([0, 1, 1]), np.array([0, 0]), np.array([0])]
    found = score("accuracy", truth, predicted)
    assert (found.value, found.n_examples, found.n_labels) == (pytest.approx(2 / 3), 2, 3)
    values = score("mse", np.array([1.0, np.nan, 3.0]), np.array([1.0, 9.0, 1.0]))
    assert (values.value, values.n_labels) == (2.0, 2)


@pytest.mark.parametrize("name", ["accuracy", "spearman", "roc_auc"])
def test_intervals_cover_the_true_value(name: str) -> None:
    # 200 samples of a known distribution: 95 % intervals must hold the truth in about 95 % of them.
    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        n = 150
        if name == "spearman":
            both = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], n)
            return both[:, 0], both[:, 1]
        truth = rng.integers(0, 2, n)
        if name == "accuracy":
            return truth, np.where(rng.random(n) < 0.8, truth, 1 - truth)
        return truth, rng.normal(truth, 1.0)

    expected = {
        "accuracy": 0.8,
        "spearman": 6 / np.pi * np.arcsin(0.6 / 2),
        "roc_auc": stats.norm.cdf(1 / np.sqrt(2)),
    }[name]
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(200):
        found = score(name, *draw(rng), n_bootstrap=200)
        held += found.low <= expected <= found.high
    # Binomial (200, 0.95) lies within 180 to 198 in 99.8 % of cases; percentile intervals of small samples are a little short.
    assert 178 <= held <= 199


def test_intervals_of_residues_are_wider_than_if_they_were_independent() -> None:
    rng = np.random.default_rng(5)
    quality = rng.random(40)
    truth = [np.zeros(200, dtype=np.int64) for _ in quality]
    predicted = [(rng.random(200) > q).astype(np.int64) for q in quality]
    found = score("accuracy", truth, predicted)
    naive = 2 * 1.96 * np.sqrt(found.value * (1 - found.value) / found.n_labels)
    assert found.high - found.low > 5 * naive


def test_paired_differences_see_what_single_intervals_hide() -> None:
    rng = np.random.default_rng(6)
    hardness = rng.random(300)
    truth = [np.zeros(50, dtype=np.int64) for _ in hardness]
    noise = [rng.random(50) for _ in hardness]
    worse = [(r < h).astype(np.int64) for r, h in zip(noise, hardness, strict=True)]
    better = [(r < h * 0.95).astype(np.int64) for r, h in zip(noise, hardness, strict=True)]
    a, b = score("accuracy", truth, better), score("accuracy", truth, worse)
    assert a.low < b.high  # overlapping
    assert difference(a, b).low > 0
    with pytest.raises(ValueError, match="cannot be paired"):
        difference(a, score("accuracy", truth[:9], better[:9]))


def test_weights_are_the_same_for_every_metric_and_block() -> None:
    whole = np.concatenate(list(weight_blocks(7, 30, seed=3)))
    assert (whole.sum(1) == 7).all()
    assert np.array_equal(whole, next(iter(weight_blocks(7, 30, seed=3))))
    assert not np.array_equal(whole, next(iter(weight_blocks(7, 30, seed=4))))


def test_undefined_scores_are_nan_and_null() -> None:
    one_class = score("roc_auc", np.ones(5, dtype=np.int64), np.linspace(0, 1, 5))
    assert np.isnan(one_class.value)
    assert one_class.to_plain()["value"] is None
    assert np.isnan(score("spearman", np.arange(5.0), np.ones(5)).value)
    assert np.isnan(score("accuracy", np.full(3, -1), np.zeros(3, dtype=np.int64)).value)
    assert mean_score(np.array([1.0, np.nan, 3.0])).value == 2.0
    assert np.isnan(mean_score(np.array([np.nan])).value)


def test_misuse_is_named() -> None:
    classes = np.array([0, 1, 1])
    with pytest.raises(ConfigError, match="'recall' is unknown; known: accuracy"):
        score("recall", classes, classes)
    with pytest.raises(ConfigError, match="'spearman' scores values, not classes; use one of accuracy"):
        score("spearman", classes, classes)
    with pytest.raises(ConfigError, match="'accuracy' needs classes or the probabilities of all classes"):
        score("accuracy", classes, np.array([0.1, 0.2, 0.3]))
    with pytest.raises(ConfigError, match="apply a threshold"):
        score("macro_f1", np.ones((2, 3), dtype=bool), np.ones((2, 3)))
    with pytest.raises(ConfigError, match="labels of 3 classes need the probabilities of all"):
        score("roc_auc", np.array([0, 1, 2]), np.array([0.1, 0.2, 0.3]))
    with pytest.raises(ConfigError, match="class 1 of two"):
        score("f1", np.array([0, 1, 2]), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="3 examples have labels, but 2"):
        score("accuracy", classes, classes[:2])
    with pytest.raises(ValueError, match="example 1: 2 labels, but 3"):
        score("accuracy", [classes, classes[:2]], [classes, classes])
    with pytest.raises(ValueError, match="1 predictions are not finite"):
        score("mse", np.arange(3.0), np.array([0.0, np.nan, 1.0]))
