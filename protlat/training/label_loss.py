"""Losses of labels; what is missing takes no part."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from protlat.tasks.data import MISSING, TaskType

# A class that comes once in a hundred thousand residues must not outweigh all others.
_MAX_WEIGHT = 100.0


class LabelLoss:
    """Cross-entropy of classes, binary cross-entropy of many labels, squared error of standardised values.

    Parameters
    ----------
    task_type : TaskType
    weights : torch.Tensor, shape (C,), or None
        Of the classes; of multi-label tasks, of the true labels.
    """

    def __init__(self, task_type: TaskType, weights: torch.Tensor | None = None) -> None:
        self.type, self.weights = task_type, weights

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sum over the known labels of a batch; 0, with a gradient of 0, where none is known.

        Parameters
        ----------
        outputs : torch.Tensor, shape (N, C), float32
        labels : torch.Tensor
            As in `LabelBatch`.
        """
        weights = None if self.weights is None else self.weights.to(outputs.device)
        if self.type == "sequence_multilabel":
            return F.binary_cross_entropy_with_logits(outputs, labels, pos_weight=weights, reduction="sum")
        if self.type.endswith("value"):
            known = torch.isfinite(labels)
            # Not by a product with zero: nan times zero is nan.
            return (outputs[:, 0] - torch.where(known, labels, outputs[:, 0].detach())).square().sum()
        return F.cross_entropy(outputs, labels, weight=weights, ignore_index=MISSING, reduction="sum")

    def amount(self, labels: torch.Tensor) -> float:
        """What the sum is divided by: known labels, or, with weights, the sum of theirs."""
        if self.type == "sequence_multilabel":
            return float(labels.numel())
        if labels.dtype != torch.int64:
            return float(torch.isfinite(labels).sum())
        known = labels[labels != MISSING]
        return float(len(known) if self.weights is None else self.weights[known].sum())


def balanced_weights(counts: np.ndarray, task_type: TaskType, n_examples: int) -> torch.Tensor:
    """Weights (C,) under which every class counts the same; 0 for those that never come.

    Parameters
    ----------
    counts : numpy.ndarray, shape (C,)
    task_type : TaskType
    n_examples : int
        Sequences, for multi-label tasks: a true label weighs as much as all false ones of its class.
    """
    some = np.maximum(counts, 1)
    if task_type == "sequence_multilabel":
        weights = np.clip((n_examples - counts) / some, 1.0, _MAX_WEIGHT)
    else:
        weights = np.minimum(counts.sum() / (some * max(int((counts > 0).sum()), 1)), _MAX_WEIGHT)
    return torch.from_numpy(np.where(counts > 0, weights, 0.0).astype(np.float32))


def prior_outputs(counts: np.ndarray, task_type: TaskType, n_examples: int, weighted: bool) -> torch.Tensor:
    """Outputs (C,) that give every class its share of the training set, or equal shares where classes are weighted."""
    if task_type.endswith("value"):
        return torch.zeros(1)
    if weighted:
        return torch.zeros(len(counts))
    if task_type == "sequence_multilabel":
        return torch.from_numpy(np.log((counts + 0.5) / (n_examples - counts + 0.5)).astype(np.float32))
    return torch.from_numpy(np.log((counts + 0.5) / (counts.sum() + 0.5 * len(counts))).astype(np.float32))
