"""Crops of pair maps for training: rectangles of the upper half, near the diagonal and far from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from protlat.alphabet import PROTEIN
from protlat.data.batching import BatchPlan, Position
from protlat.data.random_streams import Purpose, stream
from protlat.inference.feature_cache import Ragged
from protlat.models.contact_head import ResidueParts, Tiles
from protlat.tasks.data import LabelledSplit, PairTarget
from protlat.tasks.pairs import MIN_SEPARATION

# Class of a pixel that is neither trained on nor scored.
UNKNOWN = -1


class PairPlan(BatchPlan):
    """The order of chains, with the epoch handed on beside each, so that every epoch has other crops."""

    def walk(self, start: Position, rank: int = 0, world_size: int = 1) -> Iterator[tuple[int, np.ndarray]]:
        """As `BatchPlan.walk`, rows of (chain, epoch), shape (n, 2)."""
        for epoch, picks in super().walk(start, rank, world_size):
            yield epoch, np.stack([picks, np.full_like(picks, epoch)], axis=1)


@dataclass(frozen=True)
class PairBatch:
    """Crops of some chains.

    Attributes
    ----------
    inputs : torch.Tensor, shape (T, E), float32
        Vectors of the residues of the chains, end to end.
    segments : PairLayout
        Where chains and crops lie.
    labels : torch.Tensor, shape (B, H, W), int64
        Class of distance of each pixel; -1: not trained on.
    rows : sequence of int
        The chains, for messages.
    """

    inputs: torch.Tensor
    segments: PairLayout
    labels: torch.Tensor
    rows: Sequence[int]

    @property
    def n_tokens(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> PairBatch:
        return PairBatch(self.inputs.to(device), self.segments.to(device), self.labels.to(device), self.rows)


@dataclass(frozen=True)
class PairLayout:
    """Where the chains of a batch begin, how their residues are numbered, and which crops are taken.

    Attributes
    ----------
    lengths : list of int
    index : torch.Tensor, shape (T,), int64
    tiles : Tiles
    """

    lengths: list[int]
    index: torch.Tensor
    tiles: Tiles

    def to(self, device: torch.device) -> PairLayout:
        return PairLayout(self.lengths, self.index.to(device), Tiles(*(part.to(device) for part in self.tiles)))


class PairTrainer(torch.nn.Module):
    """A contact head as the training loop calls it: vectors and layout in, logits of the classes of distance out."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, inputs: torch.Tensor, segments: PairLayout) -> torch.Tensor:
        """(T, E) -> (B, K, H, W)."""
        found = [self.head.residues(chain) for chain in inputs.split(segments.lengths)]  # type: ignore[operator]  # a ContactHead
        parts = ResidueParts(tuple(torch.cat(columns) for columns in zip(*found, strict=True)), segments.index)
        logits: torch.Tensor = self.head(parts, segments.tiles)
        return logits


class PairLoss:
    """Cross-entropy of the classes of distance, summed over known pixels."""

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum over known pixels of logits (B, K, H, W) against labels (B, H, W); a scalar in float32."""
        known = labels != UNKNOWN
        wide = logits.permute(0, 2, 3, 1)[known].float()
        return torch.nn.functional.cross_entropy(wide, labels[known], reduction="sum")

    def amount(self, labels: torch.Tensor) -> float:
        """Known pixels."""
        return float((labels != UNKNOWN).sum())


def one_hot(ids: np.ndarray) -> np.ndarray:
    """Vectors that tell residues apart and nothing else, (L, 33) float32."""
    return np.eye(len(PROTEIN), dtype=np.float32)[ids]


class PairDataset:
    """Random crops of the chains of a split.

    Parameters
    ----------
    split : LabelledSplit
        Of type pair.
    features : Ragged or None
        Vectors of the residues; None: one-hot.
    edges_angstrom : sequence of float
        Borders of the classes of distance.
    crop : int
        Residues to a side.
    n_crops : int
        Crops of each chain in a batch; those of a chain share the state that their pixels are pooled into.
    seed : int
    """

    def __init__(
        self,
        split: LabelledSplit,
        features: Ragged | None,
        edges_angstrom: Sequence[float],
        crop: int,
        n_crops: int,
        seed: int,
    ) -> None:
        self.split, self.features = split, features
        self.edges = np.asarray(edges_angstrom)
        self.crop, self.n_crops, self.seed = crop, n_crops, seed

    def __len__(self) -> int:
        return len(self.split)

    def vectors(self, row: int) -> np.ndarray:
        """Vectors of a chain, (L, E)."""
        return one_hot(self.split.ids[row]) if self.features is None else self.features[row]

    def target(self, row: int) -> PairTarget:
        found = self.split.labels[row]
        assert isinstance(found, PairTarget)
        return found

    def batch(self, picks: np.ndarray) -> PairBatch:
        """The crops of chains for rows of (chain, epoch)."""
        rows, columns, chains, labels, start = [], [], [], [], 0
        for number, (row, epoch) in enumerate(picks.tolist()):
            target = self.target(row)
            for first, second in self.places(len(target.index), row, epoch):
                a, b = self._residues(first, len(target.index)), self._residues(second, len(target.index))
                labels.append(self._labels(target, a, b))
                rows.append(np.where(a < 0, a, a + start))
                columns.append(np.where(b < 0, b, b + start))
                chains.append(number)
            start += len(target.index)
        chosen = picks[:, 0].tolist()
        vectors = [np.asarray(self.vectors(row), dtype=np.float32) for row in chosen]
        index = np.concatenate([self.target(row).index for row in chosen])
        tiles = Tiles(*(torch.from_numpy(np.asarray(part)) for part in (rows, columns, chains)))
        layout = PairLayout([len(part) for part in vectors], torch.from_numpy(index), tiles)
        return PairBatch(torch.from_numpy(np.concatenate(vectors)), layout, torch.from_numpy(np.stack(labels)), chosen)

    def places(self, n_residues: int, row: int, epoch: int) -> list[tuple[int, int]]:
        """First row and first column of each crop of a chain, first row <= first column; depends on nothing else.

        Both are drawn evenly over the chain, so that far from the diagonal there are as many crops as there is room.
        """
        room = n_residues - self.crop
        if room <= 0:
            return [(0, 0)]
        drawn = stream(self.seed, Purpose.CROP, epoch, row).integers(0, room + 1, size=(self.n_crops, 2))
        return [(int(min(pair)), int(max(pair))) for pair in drawn]

    def _residues(self, first: int, n_residues: int) -> np.ndarray:
        """Residues of a side of a crop; -1 beyond the end of a short chain."""
        found = np.arange(first, first + self.crop)
        return np.where(found < n_residues, found, -1)

    def _labels(self, target: PairTarget, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Class of distance of each pixel, (H, W) int64, -1 where it is not trained on."""
        apart = target.xyz[rows][:, None] - target.xyz[columns][None]
        distance = np.sqrt(np.square(apart).sum(-1))
        separation = target.index[columns][None] - target.index[rows][:, None]
        known = np.isfinite(distance) & (separation >= MIN_SEPARATION) & (rows >= 0)[:, None] & (columns >= 0)[None]
        return np.where(known, np.digitize(distance, self.edges), UNKNOWN)
