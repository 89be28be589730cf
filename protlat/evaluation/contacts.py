"""Scores of contact maps: precision among the most probable pairs of each protein, averaged over proteins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from protlat.errors import ConfigError
from protlat.evaluation.bootstrap import N_BOOTSTRAP, Score, mean_score
from protlat.tasks.data import PairTarget
from protlat.tasks.pairs import RANGES, SEPARATION_STARTS, SeparationRange, pair_labels

# Top L, L/2 and L/5 pairs of a protein of L residues.
DIVISORS = (1, 2, 5)


class ContactMetric(NamedTuple):
    """Precision among the top L / `divisor` pairs of a range of separations."""

    range: SeparationRange
    divisor: int

    @property
    def name(self) -> str:
        return f"precision_{self.range.name}_l{'' if self.divisor == 1 else self.divisor}"

    @property
    def title(self) -> str:
        over = "L" if self.divisor == 1 else f"L/{self.divisor}"
        return f"precision at {over}, {self.range.name.replace('_', ' + ')} range"


CONTACT_METRICS: dict[str, ContactMetric] = {
    metric.name: metric for found in RANGES for divisor in DIVISORS for metric in [ContactMetric(found, divisor)]
}
_ALIAS = re.compile(r"^p(?:recision)?@l(?:/?([25]))?[ _](\w+)$")


def contact_metric(name: str) -> ContactMetric:
    """A metric by its name, such as ``precision_long_l5``, or as people write it: ``P@L/5 long``.

    Raises
    ------
    ConfigError
        No such metric.
    """
    found = _ALIAS.match(name.lower())
    key = f"precision_{found[2]}_l{found[1] or ''}" if found else name
    if key not in CONTACT_METRICS:
        raise ConfigError(f"metric {name!r} is unknown for contacts; known: {', '.join(CONTACT_METRICS)}")
    return CONTACT_METRICS[key]


def chain_precisions(
    scores: np.ndarray, target: PairTarget, metrics: Sequence[ContactMetric] = tuple(CONTACT_METRICS.values())
) -> dict[str, float]:
    """Precisions of one chain.

    Parameters
    ----------
    scores : numpy.ndarray, shape (L, L), float
        Higher is more likely a contact; only pairs (i, j) with j > i are read.
    target : PairTarget
    metrics : sequence of ContactMetric

    Returns
    -------
    dict of str to float
        nan where the range holds no known pair.

    Raises
    ------
    ValueError
        The map is of another size than the chain, or not finite where it is scored.

    Notes
    -----
    L is the number of residues of the chain. Pairs with an unknown atom are neither counted nor take a place among the top;
    where fewer pairs are known than asked for, all of them are taken. Pairs of equal score at the end of the top count with
    their share of contacts, which is the expectation over their orders.
    """
    n = len(target.index)
    if scores.shape != (n, n):
        raise ValueError(f"a map of shape {scores.shape} for a chain of {n} residues")
    labels = pair_labels(target)
    known = np.triu(labels.known, 1)
    separation, contacts, values = labels.separation[known], labels.contacts[known], scores[known]
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite")
    found: dict[str, float] = {}
    for held in {metric.range for metric in metrics}:
        inside = held.holds(separation)
        order = np.argsort(-values[inside], kind="stable")
        ranked, true = values[inside][order], contacts[inside][order]
        for metric in metrics:
            if metric.range == held:
                found[metric.name] = _precision(ranked, true, max(n // metric.divisor, 1))
    return {metric.name: found[metric.name] for metric in metrics}


def _precision(ranked: np.ndarray, true: np.ndarray, n_top: int) -> float:
    """Share of contacts among the first `n_top` of falling scores, ties at the end in expectation."""
    n_top = min(n_top, len(ranked))
    if n_top == 0:
        return float("nan")
    last = ranked[n_top - 1]
    first_tied, end_tied = (int(np.searchsorted(-ranked, -last, side=side)) for side in ("left", "right"))
    share = true[first_tied:end_tied].mean()
    return float((true[:first_tied].sum() + share * (n_top - first_tied)) / n_top)


def split_precisions(
    maps: Iterable[np.ndarray],
    targets: Sequence[PairTarget],
    metrics: Sequence[ContactMetric] = tuple(CONTACT_METRICS.values()),
) -> dict[str, np.ndarray]:
    """Precisions of every chain of a split, by metric: shape (N,), nan where a chain has no known pair of the range.

    Parameters
    ----------
    maps : iterable of numpy.ndarray, shapes (L, L)
        One per target, in order; taken one at a time.
    """
    rows = [chain_precisions(scores, target, metrics) for scores, target in zip(maps, targets, strict=True)]
    return {metric.name: np.array([row[metric.name] for row in rows], dtype=np.float64) for metric in metrics}


def contact_scores(
    precisions: Mapping[str, np.ndarray], n_bootstrap: int = N_BOOTSTRAP, seed: int = 0
) -> dict[str, Score]:
    """Means over chains with intervals over resampled chains."""
    return {name: mean_score(values, n_bootstrap, seed) for name, values in precisions.items()}


def separation_map(prior_logits: np.ndarray, target: PairTarget) -> np.ndarray:
    """The map of a predictor that knows separations only.

    Parameters
    ----------
    prior_logits : numpy.ndarray, shape (len(SEPARATION_STARTS),)
        Log odds of a contact by class of separation.

    Returns
    -------
    numpy.ndarray, shape (L, L)
    """
    separation = np.abs(target.index[:, None] - target.index[None, :])
    found: np.ndarray = prior_logits[np.searchsorted(SEPARATION_STARTS, separation, side="right") - 1]
    return found
