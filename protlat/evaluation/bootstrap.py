"""Intervals of scores by resampling proteins, not residues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

N_BOOTSTRAP = 1000
_CELLS_PER_BLOCK = 4_000_000
_LOW_PERCENT, _HIGH_PERCENT = 2.5, 97.5

Resampler = Callable[[np.ndarray], np.ndarray]
"""From weights of the examples, shape (B, N), to the metric of each of the B weighted samples, shape (B,)."""


@dataclass(frozen=True)
class Score:
    """A metric on one split with its bootstrap interval.

    Attributes
    ----------
    value : float
        nan where the metric is not defined: a ranking with one class only, a correlation with a constant.
    low, high : float
        Ends of the 95 % percentile interval; nan without resampling.
    n_examples : int
        Proteins with at least one label: what is resampled.
    n_labels : int
        Labels scored: residues in per-residue tasks.
    replicates : numpy.ndarray, shape (B,), float64
        Metric of each resampled set; nan where it is not defined there.
    """

    value: float
    low: float
    high: float
    n_examples: int
    n_labels: int
    replicates: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    def to_plain(self) -> dict[str, Any]:
        """Values for JSON, without the replicates; nan becomes null."""
        return {
            "value": _or_none(self.value),
            "low": _or_none(self.low),
            "high": _or_none(self.high),
            "n_examples": self.n_examples,
            "n_labels": self.n_labels,
            "n_bootstrap": len(self.replicates),
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Score:
        """Inverse of `to_plain`; ``replicates``, where they are kept beside it, may hold null."""
        value, low, high = (np.nan if plain[name] is None else float(plain[name]) for name in ("value", "low", "high"))
        kept = [np.nan if one is None else float(one) for one in plain.get("replicates", ())]
        return Score(
            value, low, high, int(plain["n_examples"]), int(plain["n_labels"]), np.array(kept, dtype=np.float64)
        )

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def weight_blocks(n_examples: int, n_bootstrap: int, seed: int) -> Iterator[np.ndarray]:
    """How often each example is drawn in each of `n_bootstrap` samples with replacement.

    Yields
    ------
    numpy.ndarray, shape (b, N), float64
        Rows sum to N. The same (N, seed) gives the same rows, whatever is scored, so that two predictors can be compared
        sample by sample.
    """
    rng = np.random.default_rng(seed)
    rows_per_block = max(1, _CELLS_PER_BLOCK // max(n_examples, 1))
    for start in range(0, n_bootstrap, rows_per_block):
        n_rows = min(rows_per_block, n_bootstrap - start)
        block = np.empty((n_rows, n_examples))
        for row in block:
            row[:] = np.bincount(rng.integers(0, n_examples, size=n_examples), minlength=n_examples)
        yield block


def interval(replicates: np.ndarray) -> tuple[float, float]:
    """Ends of the 95 % percentile interval; undefined replicates are left out.

    References
    ----------
    Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.
    """
    known = replicates[np.isfinite(replicates)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.percentile(known, [_LOW_PERCENT, _HIGH_PERCENT])
    return float(low), float(high)


def bootstrap_score(
    value: float, resampler: Resampler, n_examples: int, n_labels: int, n_bootstrap: int = N_BOOTSTRAP, seed: int = 0
) -> Score:
    """A score with its interval.

    Parameters
    ----------
    value : float
        The metric itself.
    resampler : callable
        The metric of weighted samples. Where it is approximate (binned), its error on the whole set is taken off every
        replicate.
    n_examples, n_labels : int
    n_bootstrap : int
        0 leaves the interval out.
    seed : int
    """
    if n_bootstrap == 0 or n_examples == 0 or np.isnan(value):
        return Score(value, float("nan"), float("nan"), n_examples, n_labels, np.full(n_bootstrap, np.nan))
    shift = float(resampler(np.ones((1, n_examples)))[0]) - value
    blocks = [resampler(weights) for weights in weight_blocks(n_examples, n_bootstrap, seed)]
    replicates = np.concatenate(blocks) - (shift if np.isfinite(shift) else 0.0)
    return Score(value, *interval(replicates), n_examples, n_labels, replicates)


def mean_score(values: np.ndarray, n_bootstrap: int = N_BOOTSTRAP, seed: int = 0) -> Score:
    """Mean over proteins of a number known for each, such as the precision of a contact map.

    Parameters
    ----------
    values : numpy.ndarray, shape (N,)
        nan: not known, left out.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    n = len(known)
    mean = float(known.mean()) if n else float("nan")
    return bootstrap_score(mean, lambda weights: weights @ known / weights.sum(1), n, n, n_bootstrap, seed)


def difference(ours: Score, theirs: Score) -> Score:
    """How much higher one score is than another on the same examples, with the interval of the difference.

    Both must be resampled with the same seed: differences are then paired, which removes what all predictors share - how
    hard the drawn proteins are.

    Raises
    ------
    ValueError
        The scores are of other examples or have other numbers of replicates.
    """
    if ours.n_examples != theirs.n_examples or len(ours.replicates) != len(theirs.replicates):
        raise ValueError(
            f"scores of {ours.n_examples} and {theirs.n_examples} examples with {len(ours.replicates)} and "
            f"{len(theirs.replicates)} replicates cannot be paired"
        )
    replicates = ours.replicates - theirs.replicates
    return Score(ours.value - theirs.value, *interval(replicates), ours.n_examples, ours.n_labels, replicates)
