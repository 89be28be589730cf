"""Loss, perplexity and accuracy over predicted positions, in all and by tag."""

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
    """

    def __init__(self, tags: list[str]) -> None:
        self.tags = tags
        self._sums = np.zeros((3, len(tags)), dtype=np.float64)

    def add(self, codes: np.ndarray, nll: np.ndarray, correct: np.ndarray) -> None:
        """Add positions: tag code, negative log-likelihood in nats, and whether the likeliest token was right; (M,) each."""
        n_tags = len(self.tags)
        for row, weights in enumerate((None, nll, correct.astype(np.float64))):
            self._sums[row] += np.bincount(codes, weights=weights, minlength=n_tags)

    def reduce(self, add_up: Callable[[list[float]], list[float]]) -> None:
        """Add the sums of other ranks."""
        self._sums = np.array(add_up(self._sums.flatten().tolist())).reshape(self._sums.shape)

    def summary(self) -> dict[str, Any]:
        """``loss``, ``perplexity``, ``accuracy`` and ``n`` over all positions, and the same by tag under ``tags``."""
        values = _score(*self._sums.sum(1))
        if self.tags != [""]:
            by_tag = {tag: _score(*self._sums[:, code]) for code, tag in enumerate(self.tags) if self._sums[0, code]}
            values["tags"] = by_tag
        return values


def _score(n: float, nll: float, correct: float) -> dict[str, Any]:
    if n == 0:
        return {"n": 0, "loss": None, "perplexity": None, "accuracy": None}
    loss = float(nll / n)
    # A loss above 700 has no finite exponential.
    return {"n": int(n), "loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": float(correct / n)}
