"""Precision of contact maps against its definition, written out as loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from protlat.errors import ConfigError
from protlat.evaluation.contacts import (
    CONTACT_METRICS,
    chain_precisions,
    contact_metric,
    contact_scores,
    separation_map,
    split_precisions,
)
from protlat.tasks.data import PairTarget
from protlat.tasks.pairs import SEPARATION_STARTS, pair_labels, separation_prior


def random_chain(n: int, seed: int, n_unknown: int = 0, gap: int = 0) -> PairTarget:
    """A random walk folded into a small box, so that it touches itself often."""
    rng = np.random.default_rng(seed)
    xyz = (np.cumsum(rng.normal(size=(n, 3)) * 3, axis=0) % 25).astype(np.float32)
    xyz[rng.choice(n, n_unknown, replace=False)] = np.nan
    index = np.arange(n)
    index[n // 2 :] += gap
    return PairTarget(xyz, index)


def plain_pairs(target: PairTarget) -> dict[tuple[int, int], bool]:
    """Known pairs of separation 6 and more, and whether they are contacts, by the definition in float64."""
    found = {}
    xyz = target.xyz.astype(np.float64)
    for i, j in itertools.combinations(range(len(xyz)), 2):
        distance = sum((xyz[i, k] - xyz[j, k]) ** 2 for k in range(3)) ** 0.5
        if target.index[j] - target.index[i] >= 6 and not np.isnan(distance):
            found[i, j] = bool(distance < 8.0)
    return found


@pytest.mark.parametrize(("n_unknown", "gap"), [(0, 0), (7, 0), (0, 30)])
def test_contacts_follow_the_definition(n_unknown: int, gap: int) -> None:
    target = random_chain(50, 3, n_unknown, gap)
    labels = pair_labels(target)
    plain = plain_pairs(target)
    known = {(int(i), int(j)) for i, j in np.argwhere(np.triu(labels.known))}
    assert known == set(plain)
    assert {(int(i), int(j)) for i, j in np.argwhere(np.triu(labels.contacts))} == {
        p for p, is_on in plain.items() if is_on
    }
    np.testing.assert_array_equal(labels.known, labels.known.T)


def test_a_part_of_the_labels_is_that_part_of_the_whole() -> None:
    target = random_chain(40, 5, 3, 10)
    whole, part = pair_labels(target), pair_labels(target, slice(3, 20), slice(15, 40))
    np.testing.assert_array_equal(part.distance, whole.distance[3:20, 15:40])
    np.testing.assert_array_equal(part.separation, whole.separation[3:20, 15:40])


@pytest.mark.parametrize(("n", "n_unknown", "gap"), [(60, 0, 0), (61, 9, 12), (27, 2, 0)])
def test_precisions_follow_the_definition(n: int, n_unknown: int, gap: int) -> None:
    target = random_chain(n, n, n_unknown, gap)
    scores = np.random.default_rng(1).normal(size=(n, n))
    found = chain_precisions(scores, target)
    plain = plain_pairs(target)
    bounds = {"short": (6, 11), "medium": (12, 23), "long": (24, 10**9), "medium_long": (12, 10**9)}
    assert len(found) == 12
    for name, (low, high) in bounds.items():
        for suffix, divisor in (("l", 1), ("l2", 2), ("l5", 5)):
            pairs = [p for p in plain if low <= target.index[p[1]] - target.index[p[0]] <= high]
            top = sorted(pairs, key=lambda p: -scores[p])[: max(n // divisor, 1)]
            expected = np.mean([plain[p] for p in top]) if top else np.nan
            np.testing.assert_allclose(found[f"precision_{name}_{suffix}"], expected, rtol=1e-12, equal_nan=True)


def test_ties_count_with_the_mean_over_their_orders() -> None:
    target = random_chain(30, 2)
    scores = np.random.default_rng(3).integers(0, 4, size=(30, 30)).astype(float)
    rng = np.random.default_rng(4)
    drawn = [chain_precisions(scores + 1e-6 * rng.random((30, 30)), target)["precision_short_l5"] for _ in range(1000)]
    # A draw spreads by at most 0.5, so the mean of 1,000 by at most 0.016.
    assert abs(chain_precisions(scores, target)["precision_short_l5"] - np.mean(drawn)) < 0.06


def test_a_range_without_a_known_pair_has_no_precision_and_does_not_count() -> None:
    short, long = random_chain(20, 1), random_chain(60, 2)
    maps = [np.zeros((20, 20)), np.zeros((60, 60))]
    found = split_precisions(maps, [short, long])
    assert np.isnan(found["precision_long_l"][0])
    score = contact_scores(found, n_bootstrap=50)["precision_long_l"]
    assert score.n_examples == 1
    assert score.value == found["precision_long_l"][1]


def test_a_perfect_map_has_precision_one() -> None:
    target = random_chain(80, 7)
    scores = -pair_labels(target).distance
    found = chain_precisions(scores, target)
    n_long = sum(target.index[j] - target.index[i] >= 24 for (i, j), is_on in plain_pairs(target).items() if is_on)
    assert n_long >= 80
    assert found["precision_long_l"] == 1.0


def test_bad_maps_are_refused() -> None:
    target = random_chain(30, 1)
    with pytest.raises(ValueError, match="chain of 30 residues"):
        chain_precisions(np.zeros((29, 29)), target)
    with pytest.raises(ValueError, match="finite"):
        chain_precisions(np.full((30, 30), np.nan), target)


def test_metrics_are_known_by_several_names() -> None:
    assert contact_metric("P@L/5 long") is CONTACT_METRICS["precision_long_l5"]
    assert contact_metric("p@l medium_long") is CONTACT_METRICS["precision_medium_long_l"]
    with pytest.raises(ConfigError, match="precision_long_l2"):
        contact_metric("precision_far")


def test_the_prior_is_the_frequency_at_each_separation() -> None:
    targets = [random_chain(70, seed) for seed in range(4)]
    prior = separation_prior(targets, (8.0,))
    pairs = [(t.index[j] - t.index[i], is_on) for t in targets for (i, j), is_on in plain_pairs(t).items()]
    at_ten = [is_on for separation, is_on in pairs if separation == 10]
    # Smoothing weighs one pair.
    assert abs(np.exp(prior[10, 0]) - np.mean(at_ten)) < 1 / len(at_ten)
    np.testing.assert_allclose(np.exp(prior).sum(1), 1, rtol=1e-12)
    logits = prior[:, 0] - prior[:, 1]
    drawn = separation_map(logits, targets[0])
    assert drawn[3, 13] == logits[10]
    assert drawn[69, 0] == logits[np.searchsorted(SEPARATION_STARTS, 69, side="right") - 1]
