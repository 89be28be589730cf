"""The batch that a training or evaluation step reads, whatever is predicted in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from protlat.data.packing import PackedBatch
from protlat.ops.segments import Segments


@dataclass(frozen=True)
class TrainingBatch:
    """A packed batch and what is to be predicted in it.

    Attributes
    ----------
    tokens : torch.Tensor, shape (T,), int64
        What the model reads.
    segments : Segments
    at : torch.Tensor, shape (M,), int64, or None
        Packed positions to predict at; None: all T of them.
    targets : torch.Tensor, shape (M,), int64
        True ids: those hidden at the positions (masked models), or those that follow them (causal models).
    rows : numpy.ndarray, shape (M,), int64
        Which of the batch's sequences each position lies in.
    indices : numpy.ndarray, shape (S,), int64
        Each sequence's index in its split.
    epoch : int
        Pass over the split that crops and masks belong to.
    carried : numpy.ndarray, shape (S,), int64, or None
        Lane whose state each sequence goes on from, -1 where it begins anew; None: nothing is carried over.
    last : numpy.ndarray, shape (lanes,), int64, or None
        The sequence of the batch that stands last in each lane: whose state the lane keeps.
    """

    tokens: torch.Tensor
    segments: Segments
    at: torch.Tensor | None
    targets: torch.Tensor
    rows: np.ndarray
    indices: np.ndarray
    epoch: int
    carried: np.ndarray | None = None
    last: np.ndarray | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_predicted(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device | str) -> TrainingBatch:
        """The same batch on another device."""
        if torch.device(device) == self.tokens.device:
            return self
        packed = PackedBatch(self.tokens, self.segments).to(device)
        at = None if self.at is None else self.at.to(device, non_blocking=True)
        targets = self.targets.to(device, non_blocking=True)
        rest = (self.rows, self.indices, self.epoch, self.carried, self.last)
        return TrainingBatch(packed.tokens, packed.segments, at, targets, *rest)
