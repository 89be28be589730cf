"""Loss, perplexity, accuracy and bits per byte over predicted positions, in all and by tag."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


class Tally:
    """Running sums by tag.

    Parameters
    ----------
    tags : list of str
        Names of the tag codes; a single empty name when there are no tags.
    unit : str
        "byte" or "masked_byte" where the tokens are bytes: bits per unit are told too, over all positions but ends of
        documents; "" elsewhere.
    """

    def __init__(self, tags: list[str], unit: str = "") -> None:
        self.tags, self.unit = tags, unit
        # Positions, nats, right answers; the first two again over the ends alone.
        self._sums = np.zeros((5, len(tags)), dtype=np.float64)

    def add(self, codes: np.ndarray, nll: np.ndarray, correct: np.ndarray, ends: np.ndarray | None = None) -> None:
        """Add M positions.

        Parameters
        ----------
        codes : numpy.ndarray, shape (M,), int
            Tag code.
        nll : numpy.ndarray, shape (M,), float
            Negative log-likelihood in nats.
        correct : numpy.ndarray, shape (M,), bool
            Whether the likeliest token was right.
        ends : numpy.ndarray, shape (M,), bool, or None
            Where ``<eos>`` was to be predicted; None: nowhere.
        """
        weights: list[np.ndarray | None] = [None, nll, correct.astype(np.float64)]
        if ends is not None:
            weights += [ends.astype(np.float64), nll * ends]
        for row, weight in enumerate(weights):
            self._sums[row] += np.bincount(codes, weights=weight, minlength=len(self.tags))

    def reduce(self, add_up: Callable[[list[float]], list[float]]) -> None:
        """Add the sums of other ranks."""
        self._sums = np.array(add_up(self._sums.flatten().tolist())).reshape(self._sums.shape)

    def summary(self) -> dict[str, Any]:
        """``loss``, ``perplexity``, ``accuracy`` and ``n`` over all positions, and the same by tag under ``tags``.

        With a unit also ``bits_per_UNIT``; where ends were predicted, ``n_ends`` of the n and their mean ``end_loss``.
        """
        values = self._score(*self._sums.sum(1))
        if self.tags != [""]:
            columns = [(tag, self._sums[:, code]) for code, tag in enumerate(self.tags)]
            values["tags"] = {tag: self._score(*column) for tag, column in columns if column[0]}
        return values

    def _score(self, n: float, nll: float, correct: float, n_ends: float, end_nll: float) -> dict[str, Any]:
        empty = n == 0
        loss = None if empty else float(nll / n)
        values: dict[str, Any] = {
            "n": int(n),
            "loss": loss,
            # A loss above 700 has no finite exponential.
            "perplexity": None if loss is None else math.exp(min(loss, 700.0)),
            "accuracy": None if empty else float(correct / n),
        }
        if self.unit:
            inner = n - n_ends
            values[f"bits_per_{self.unit}"] = float((nll - end_nll) / inner / math.log(2)) if inner else None
        if n_ends:
            values |= {"n_ends": int(n_ends), "end_loss": float(end_nll / n_ends)}
        return values
