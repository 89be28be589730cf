"""What a contact is, and how far apart two residues stand along the chain.

A contact is a pair whose C-betas (C-alpha for glycine) are closer than 8 angstrom and whose separation along the chain,
unobserved residues counted, is at least 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from protlat.tasks.data import PairTarget

CONTACT_ANGSTROM = 8.0
MIN_SEPARATION = 6


class SeparationRange(NamedTuple):
    """Pairs by their separation, both ends included; `last` None: no end."""

    name: str
    first: int
    last: int | None

    def holds(self, separation: np.ndarray) -> np.ndarray:
        """Boolean array of the shape of `separation`."""
        inside = separation >= self.first
        return inside if self.last is None else inside & (separation <= self.last)


# CASP's ranges, as ESM and TAPE report them.
RANGES = (
    SeparationRange("short", 6, 11),
    SeparationRange("medium", 12, 23),
    SeparationRange("long", 24, None),
    SeparationRange("medium_long", 12, None),
)


# Separations below the first are told apart; above it, classes widen by the ratio up to the last.
_EXACT, _RATIO, _LAST = 32, 1.25, 1024


def _class_starts() -> list[int]:
    starts = list(range(_EXACT + 1))
    while starts[-1] < _LAST:
        starts.append(int(starts[-1] * _RATIO))
    return starts


# First separation of every class: 0, 1 ... 32, 40, 50 ... up to the last, which is open.
SEPARATION_STARTS = tuple(_class_starts())


class PairLabels(NamedTuple):
    """Labels of a block of pairs.

    Attributes
    ----------
    distance : numpy.ndarray, shape (R, C), float32
        Angstrom; nan where an atom is unknown.
    separation : numpy.ndarray, shape (R, C), int64
        Absolute, along the chain.
    """

    distance: np.ndarray
    separation: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Pairs that are trained on and scored: both atoms known, separation at least 6; bool."""
        return np.isfinite(self.distance) & (self.separation >= MIN_SEPARATION)

    @property
    def contacts(self) -> np.ndarray:
        """Known pairs in contact; bool."""
        # A comparison with nan is False.
        return (self.distance < CONTACT_ANGSTROM) & (self.separation >= MIN_SEPARATION)


def pair_labels(target: PairTarget, rows: slice = slice(None), columns: slice = slice(None)) -> PairLabels:
    """Distances and separations of residues `rows` against residues `columns`; the default is the whole map.

    Parameters
    ----------
    target : PairTarget
    rows, columns : slice
        Residues in the order of the chain.
    """
    apart = target.xyz[rows, None, :] - target.xyz[None, columns, :]
    distance = np.sqrt(np.square(apart).sum(-1, dtype=np.float32))
    separation = np.abs(target.index[rows, None] - target.index[None, columns])
    return PairLabels(distance, separation)


def separation_prior(targets: Iterable[PairTarget], edges_angstrom: Sequence[float]) -> np.ndarray:
    """Log frequency of each class of distance at each class of separation: what can be known without the sequence.

    Parameters
    ----------
    targets : iterable of PairTarget
    edges_angstrom : sequence of float
        Borders of the classes of distance, ascending.

    Returns
    -------
    numpy.ndarray, shape (len(SEPARATION_STARTS), len(edges_angstrom) + 1), float64
        Counts are smoothed towards the frequencies over all separations, with the weight of one pair.
    """
    n_classes = len(edges_angstrom) + 1
    counts = np.zeros((len(SEPARATION_STARTS), n_classes))
    for target in targets:
        labels = pair_labels(target)
        known = np.triu(labels.known)
        rows = np.searchsorted(SEPARATION_STARTS, labels.separation[known], side="right") - 1
        classes = np.digitize(labels.distance[known], edges_angstrom)
        counts += np.bincount(rows * n_classes + classes, minlength=counts.size).reshape(counts.shape)
    overall = (counts.sum(0) + 1) / (counts.sum() + n_classes)
    smoothed = counts + overall
    prior: np.ndarray = np.log(smoothed / smoothed.sum(1, keepdims=True))
    return prior
