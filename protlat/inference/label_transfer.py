"""Labels for proteins from the nearest labelled ones: kernel regression over embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from protlat.errors import ConfigError
from protlat.nn.classic.kernel_regression import KernelRegression, squared_distances

Metric = Literal["cosine", "euclidean"]
Task = Literal["classes", "numbers"]
# More distinct whole numbers than this are measurements, fewer are names of classes.
_MOST_NUMBERED_CLASSES = 20
_GRID = 25
# References left out in turn when the bandwidth is chosen; more would sharpen the choice little and cost the square.
_MOST_LEFT_OUT = 2048
# Share of the prior in a probability before its logarithm is taken: a certain mistake costs 4.6, not infinity.
_PRIOR = 0.01
_QUERIES_AT_ONCE = 1024


@dataclass(frozen=True)
class Transferred:
    """What the references say of one query.

    Attributes
    ----------
    label : str or float
        The likeliest class, or the average value.
    certainty : float
        The class's probability, or the spread (standard deviation) of the averaged values.
    nearest : int
        Row of the nearest reference.
    distance : float
        To it: Euclidean, or 1 - cosine.
    n_effective : float
        How many references the average rests on: 1 / sum of squared weights.
    far : bool
        Whether it is farther from its nearest reference than nearly all references are from theirs.
    """

    label: str | float
    certainty: float
    nearest: int
    distance: float
    n_effective: float
    far: bool


class LabelTransfer:
    """Averages of the references' labels, weighted by a Gaussian kernel of their distance.

    Parameters
    ----------
    vectors : numpy.ndarray, shape (K, E)
        Embeddings of the references.
    labels : sequence of str
        Theirs; numbers as text.
    metric : "cosine" or "euclidean"
    bandwidth : float or None
        h in exp(-d^2 / (2 h^2)), d the Euclidean distance, of unit vectors with "cosine", where d^2 / 2 = 1 - cosine.
        None: chosen from a grid by leaving references out.
    task : "classes", "numbers" or None
        None: numbers when all labels are numbers and not all of them few whole ones.
    far : float
        Share of the references' own nearest distances beyond which a query is far.
    seed : int
        Picks the references to leave out when there are more than 2,048.

    Attributes
    ----------
    task : str
    bandwidth : float
    left_out : dict of str to float
        Leave-one-out scores at the bandwidth used: "score" (accuracy, or share of variance explained) and "plain" (of
        the commonest class, or 0 for the mean).

    Raises
    ------
    ConfigError
        Fewer than two references, or numbers asked of labels that are none.

    References
    ----------
    Nadaraya 1964; Watson 1964.
    """

    def __init__(
        self,
        vectors: np.ndarray,
        labels: Sequence[str],
        metric: Metric = "cosine",
        bandwidth: float | None = None,
        task: Task | None = None,
        far: float = 0.99,
        seed: int = 0,
    ) -> None:
        if len(labels) < 2:
            raise ConfigError(f"{len(labels)} labelled references: at least two are needed")
        self.metric = metric
        self.task: Task = task or task_of(labels)
        self._keys = self._prepared(vectors)
        self.classes: list[str] = []
        if self.task == "classes":
            self.classes = sorted(set(labels))
            row = torch.tensor([self.classes.index(label) for label in labels])
            self._values = torch.nn.functional.one_hot(row, len(self.classes)).float()
        else:
            self._values = torch.tensor([_number(label) for label in labels], dtype=torch.float32)[:, None]
        generator = torch.Generator().manual_seed(seed)
        self._rows = torch.randperm(len(labels), generator=generator)[:_MOST_LEFT_OUT].sort().values
        nearest = self._nearest_others()
        self._far = float(np.quantile(nearest, far))
        self.bandwidth = float(bandwidth) if bandwidth is not None else self._choose(nearest)
        self.left_out = self._scores(self.bandwidth)

    @property
    def dim(self) -> int:
        """Numbers of one vector."""
        return self._keys.shape[1]

    def transfer(self, vectors: np.ndarray) -> Iterator[Transferred]:
        """One answer for each row of `vectors` (Q, E)."""
        queries = self._prepared(vectors)
        for part in queries.split(_QUERIES_AT_ONCE):
            squared = squared_distances(part, self._keys)
            weights = (-squared / (2 * self.bandwidth**2)).softmax(-1)
            least, nearest = squared.min(-1)
            average = weights @ self._values
            if self.task == "classes":
                certainty, best = average.max(-1)
                labels: list[str | float] = [self.classes[i] for i in best.tolist()]
            else:
                spread = (weights @ self._values.square() - average.square()).clamp_min(0).sqrt()
                certainty, labels = spread[:, 0], average[:, 0].tolist()
            distances = self._shown(least)
            rows = (certainty, nearest, distances, 1 / weights.square().sum(-1), distances > self._far)
            for label, *values in zip(labels, *(x.tolist() for x in rows), strict=True):
                yield Transferred(label, *values)

    def _prepared(self, vectors: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(np.asarray(vectors, dtype=np.float32))
        return torch.nn.functional.normalize(x, dim=-1) if self.metric == "cosine" else x

    def _shown(self, squared: torch.Tensor) -> torch.Tensor:
        return squared / 2 if self.metric == "cosine" else squared.sqrt()

    def _nearest_others(self) -> np.ndarray:
        """Distance of the references in `_rows` from the nearest other one, as shown."""
        least = []
        for rows in self._rows.split(_QUERIES_AT_ONCE):
            squared = squared_distances(self._keys[rows], self._keys)
            squared[torch.arange(len(rows)), rows] = torch.inf
            least.append(squared.min(-1).values)
        return self._shown(torch.cat(least)).numpy()

    def _choose(self, nearest: np.ndarray) -> float:
        """The bandwidth of least leave-one-out loss on a logarithmic grid, the widest of equals."""
        sample = self._keys[self._rows]
        # From a fraction of the distance between neighbours to that between any two.
        widest = 2 * float(squared_distances(sample, sample).mean().sqrt())
        neighbours = float(np.median(nearest))
        narrowest = 0.1 * ((2 * neighbours) ** 0.5 if self.metric == "cosine" else neighbours)
        if widest == 0:
            raise ConfigError("all reference embeddings are the same vector: nothing can be told from their distances")
        grid = np.geomspace(widest, max(narrowest, 1e-3 * widest), _GRID)
        losses = [self._loss(self._left_out(float(width))) for width in grid]
        return float(grid[int(np.argmin(losses))])

    def _left_out(self, bandwidth: float) -> torch.Tensor:
        return KernelRegression(1 / bandwidth).leave_one_out(self._keys, self._values, self._rows)

    def _loss(self, predicted: torch.Tensor) -> float:
        truth = self._values[self._rows]
        if self.task == "numbers":
            return float((predicted - truth).square().mean())
        mixed = (1 - _PRIOR) * predicted + _PRIOR * self._values.mean(0)
        return float(-(mixed * truth).sum(-1).log().mean())

    def _scores(self, bandwidth: float) -> dict[str, float]:
        predicted, truth = self._left_out(bandwidth), self._values[self._rows]
        if self.task == "numbers":
            spread = float((truth - truth.mean()).square().mean())
            return {"score": 1 - self._loss(predicted) / spread if spread else 0.0, "plain": 0.0}
        right = predicted.argmax(-1) == truth.argmax(-1)
        return {"score": float(right.float().mean()), "plain": float(truth.mean(0).max())}


def task_of(labels: Sequence[str]) -> Task:
    """Whether labels are classes or numbers.

    Examples
    --------
    >>> task_of(["0", "1", "1"]), task_of(["0.5", "2"]), task_of(["nucleus", "2"])
    ('classes', 'numbers', 'classes')
    """
    distinct = set(labels)
    try:
        values = {float(label) for label in distinct}
    except ValueError:
        return "classes"
    whole = all(value.is_integer() for value in values)
    return "classes" if whole and len(values) <= _MOST_NUMBERED_CLASSES else "numbers"


def _number(label: str) -> float:
    try:
        value = float(label)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise ConfigError(f"label {label!r} is not a number; use --task classes")
    return value
