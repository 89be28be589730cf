"""Labelled sequences as packed batches of tokens, or of vectors that were computed before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from protlat.alphabet import Alphabet
from protlat.data.batching import BatchPlan
from protlat.data.packing import pack_ids, with_specials
from protlat.inference.feature_cache import Ragged, gather
from protlat.ops.segments import Segments
from protlat.tasks.data import MISSING, LabelledSplit, TaskType


@dataclass(frozen=True)
class LabelBatch:
    """Sequences end to end with their labels.

    Attributes
    ----------
    inputs : torch.Tensor, shape (T,) int64 or (T, E) float16 or float32
        Tokens with specials, or vectors of residues.
    segments : Segments
    labels : torch.Tensor
        Class codes int64 (N,), values float32 (N,), or float32 (N, C) for multi-label tasks; N is the number of
        sequences, or of residues.
    n_labels : int
        Known labels.
    n_tokens : int
        Residues and specials that the batch stands for.
    rows : tuple of int
        Places of the sequences in the split.
    """

    inputs: torch.Tensor
    segments: Segments
    labels: torch.Tensor
    n_labels: int
    n_tokens: int
    rows: tuple[int, ...]

    def to(self, device: torch.device) -> LabelBatch:
        if device == self.inputs.device:
            return self
        segments = Segments(self.segments.lengths, device)
        inputs, labels = self.inputs.to(device, non_blocking=True), self.labels.to(device, non_blocking=True)
        return LabelBatch(inputs, segments, labels, self.n_labels, self.n_tokens, self.rows)


class LabelDataset:
    """One split of a task.

    Parameters
    ----------
    task_type : TaskType
    split : LabelledSplit
    features : Ragged, numpy.ndarray (N, E) or None
        Vectors of residues, or of sequences; None: batches are of tokens.
    alphabet : Alphabet
        Where the specials of token batches come from.
    scaling : tuple of float
        Mean and spread by which values are standardised.
    all_rows : bool
        Keep sequences without any label too, for prediction.
    """

    def __init__(
        self,
        task_type: TaskType,
        split: LabelledSplit,
        features: Ragged | np.ndarray | None,
        alphabet: Alphabet,
        scaling: tuple[float, float] = (0.0, 1.0),
        all_rows: bool = False,
    ) -> None:
        self.type, self.split, self.features, self.alphabet, self.scaling = (
            task_type,
            split,
            features,
            alphabet,
            scaling,
        )
        self.rows = np.array([i for i in range(len(split)) if all_rows or n_known(split, i) > 0], dtype=np.int64)
        self.lengths = np.array([len(split.ids[i]) + 2 for i in self.rows], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def plan(self, tokens_per_batch: int, seed: int, shuffle: bool) -> BatchPlan:
        """Batches by the number of tokens they stand for; a longer sequence is a batch of its own."""
        return BatchPlan(np.minimum(self.lengths, tokens_per_batch), tokens_per_batch, seed, shuffle)

    def batch(self, picks: Sequence[int] | np.ndarray) -> LabelBatch:
        """The sequences at `picks`, which count kept rows."""
        rows = [int(self.rows[i]) for i in picks]
        if self.features is None:
            packed = pack_ids([with_specials(self.split.ids[i], self.alphabet) for i in rows])
            inputs, segments = packed.tokens, packed.segments
        else:
            vectors, lengths = gather(self.features, rows)
            inputs, segments = torch.from_numpy(np.ascontiguousarray(vectors)), Segments(lengths)
        labels = self.labels(rows)
        n_tokens = int(self.lengths[np.asarray(picks)].sum())
        return LabelBatch(inputs, segments, labels, count_known(labels), n_tokens, tuple(rows))

    def labels(self, rows: Sequence[int]) -> torch.Tensor:
        """Labels of sequences end to end, values standardised."""
        labels = self.split.labels
        if isinstance(labels, np.ndarray):
            found = labels[np.asarray(rows)]
        else:
            found = np.concatenate([np.asarray(labels[i]) for i in rows])
        if self.type.endswith("value"):
            mean, spread = self.scaling
            return torch.from_numpy(((found - mean) / spread).astype(np.float32))
        return torch.from_numpy(found.astype(np.float32 if self.type == "sequence_multilabel" else np.int64))


def n_known(split: LabelledSplit, row: int) -> int:
    """Known labels of one sequence."""
    label = np.atleast_1d(np.asarray(split.labels[row]))
    if label.dtype == bool:
        return len(label)
    return int(np.isfinite(label).sum() if label.dtype.kind == "f" else (label != MISSING).sum())


def known_labels(split: LabelledSplit) -> np.ndarray:
    """All known labels end to end, (M,), or (N, C) of a multi-label task."""
    if isinstance(split.labels, np.ndarray) and split.labels.dtype == bool:
        return split.labels
    arrays = [split.labels] if isinstance(split.labels, np.ndarray) else [np.asarray(one) for one in split.labels]
    flat = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
    return flat[np.isfinite(flat)] if flat.dtype.kind == "f" else flat[flat != MISSING]


def count_known(labels: torch.Tensor) -> int:
    """Known labels of a batch: of a multi-label task all are, since what is not listed counts as false."""
    if labels.dtype == torch.int64:
        return int((labels != MISSING).sum())
    return int(torch.isfinite(labels).sum())


def value_scaling(split: LabelledSplit) -> tuple[float, float]:
    """Mean and standard deviation of a split's values."""
    known = known_labels(split).astype(np.float64)
    spread = float(known.std())
    return float(known.mean()), spread if spread > 0 else 1.0


def class_counts(split: LabelledSplit, n_classes: int) -> np.ndarray:
    """How often each class comes, shape (C,), int64."""
    if isinstance(split.labels, np.ndarray) and split.labels.dtype == bool:
        return np.asarray(split.labels.sum(0), dtype=np.int64)
    return np.bincount(known_labels(split), minlength=n_classes)
