"""Place of every observed residue along the whole chain, where the file lists the residues that nobody saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from protlat.data.chains import index_of_numbers
from protlat.data.structure_parse import Number

# Segments are placed by trial: more trials than this mean a chain of repeats, which author's numbers serve better.
_MAX_TRIALS, _MAX_STRETCHES = 10_000, 500


def index_from_places(places: Mapping[Number, int], numbers: Sequence[Number]) -> np.ndarray | None:
    """Index by the file's own table (mmCIF), shape (L,), from 0; None where it lacks a residue or does not ascend."""
    if not all(number in places for number in numbers):
        return None
    index = np.asarray([places[number] for number in numbers], dtype=np.int64)
    return index - index[0] if (np.diff(index) > 0).all() else None


def index_from_seqres(whole: str, observed: str, breaks: np.ndarray, numbers: Sequence[str]) -> np.ndarray | None:
    """Index by SEQRES, from 0 at the first observed residue; arguments as of `places_in`."""
    places = places_in(whole, observed, breaks, numbers)
    return None if places is None else places - places[0]


def places_in(whole: str, observed: str, breaks: np.ndarray, numbers: Sequence[str]) -> np.ndarray | None:
    """Where observed residues stand in a whole sequence: every stretch between breaks is found in it, in order.

    Parameters
    ----------
    whole : str
        Letters of the whole chain.
    observed : str
        Letters of the residues that were seen.
    breaks : numpy.ndarray
        i such that residue i and the next are not neighbours.
    numbers : sequence of str
        Author's numbers: among several places that fit, the one that they suggest is taken.

    Returns
    -------
    numpy.ndarray, shape (L,), int64, or None
        0-based places, ascending; None where a stretch is not found.
    """
    bounds = [0, *(int(i) + 1 for i in breaks), len(observed)]
    stretches = [observed[a:b] for a, b in pairwise(bounds)]
    if len(stretches) > _MAX_STRETCHES:
        return None
    suggested = index_of_numbers(numbers, breaks.tolist(), len(observed))
    trials = 0

    def place(number: int, first: int, shift: int | None) -> list[int] | None:
        """Starts of the stretches from `number` on, none before `first`; `shift` is start less suggested start so far."""
        nonlocal trials
        if number == len(stretches):
            return []
        starts = _occurrences(whole, stretches[number], first)
        if shift is not None:
            wanted = int(suggested[bounds[number]]) + shift
            starts.sort(key=lambda start: (abs(start - wanted), start))
        for start in starts:
            trials += 1
            if trials > _MAX_TRIALS:
                return None
            rest = place(number + 1, start + len(stretches[number]), start - int(suggested[bounds[number]]))
            if rest is not None:
                return [start, *rest]
        return None

    starts = place(0, 0, None)
    if starts is None:
        return None
    spans = [np.arange(start, start + len(s), dtype=np.int64) for start, s in zip(starts, stretches, strict=True)]
    return np.concatenate(spans)


def _occurrences(whole: str, part: str, first: int) -> list[int]:
    found, start = [], whole.find(part, first)
    while start >= 0:
        found.append(start)
        start = whole.find(part, start + 1)
    return found
