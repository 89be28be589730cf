"""Additive attention, and the pooling head that it becomes when there is one learned query."""

from __future__ import annotations

import torch
from torch import nn

from protlat.nn.classic.masked_softmax import masked_softmax
from protlat.ops.dispatch import pick_pooled
from protlat.ops.pooled import segment_sum, softmax_over_positions
from protlat.ops.segments import Segments

# Numbers of one slab of (queries, keys, hidden): bounds the memory of many queries.
_NUMBERS_AT_ONCE = 1 << 24


class AdditiveAttention(nn.Module):
    """Scores w^T tanh(W_q q + W_k k), without biases, softmaxed over the keys that are there.

    Parameters
    ----------
    query_dim, key_dim, hidden : int
    dropout : float
        Share of weights dropped in training.

    References
    ----------
    Bahdanau et al. 2015, section A.1.2.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, hidden, bias=False)
        self.key = nn.Linear(key_dim, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, valid_lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """q (B, Q, Dq), k (B, K, Dk), v (B, K, M), lengths (B,) or (B, Q) -> (B, Q, M).

        The hidden layer of some queries at a time is held: B x K x hidden numbers for each, never for all of many.
        """
        return self.read(q, self.key(k), v, valid_lengths)

    def read(
        self, q: torch.Tensor, hidden_k: torch.Tensor, v: torch.Tensor, valid_lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`forward` with keys that were projected before, hidden_k (B, K, hidden): for a query a step."""
        hidden_q = self.query(q)
        at_once = max(1, _NUMBERS_AT_ONCE // max(hidden_k.numel(), 1))
        scores = [
            self.score(torch.tanh(part[:, :, None] + hidden_k[:, None])).squeeze(-1)
            for part in hidden_q.split(at_once, 1)
        ]
        weights = masked_softmax(scores[0] if len(scores) == 1 else torch.cat(scores, 1), valid_lengths)
        return torch.bmm(self.dropout(weights), v)


class AttentionPooling(nn.Module):
    """One vector per sequence: the average of its rows, weighted by additive attention from one learned query.

    Parameters
    ----------
    d_model : int
    hidden : int or None
        Width of the hidden layer; None: d_model.

    Notes
    -----
    Scores are w^T tanh(W_k x + u), where u stands for W_q times the learned query. At the start w is zero and the
    result is the mean over the sequence. Time and memory are those of one linear layer, O(T hidden).
    """

    def __init__(self, d_model: int, hidden: int | None = None) -> None:
        super().__init__()
        width = hidden or d_model
        self.key = nn.Linear(d_model, width, bias=False)
        self.query = nn.Parameter(0.02 * torch.randn(width))
        self.score = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, x: torch.Tensor, segments: Segments, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Pool.

        Parameters
        ----------
        x : torch.Tensor, shape (T, E)
        segments : Segments
        keep : torch.Tensor, shape (T,), bool, or None
            Rows that count, True = keep: to leave special tokens out. A sequence without any gives zeros.

        Returns
        -------
        torch.Tensor, shape (S, E), dtype of x
            Sums are taken in float32 at least.
        """
        weights = self.weights(x, segments, keep)
        return segment_sum(x * weights.to(x.dtype)[:, None], segments).to(x.dtype)

    def weights(self, x: torch.Tensor, segments: Segments, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Weight of every row of x (T, E) in its sequence, (T,), float32 at least."""
        scores = self.score(torch.tanh(self.key(x) + self.query))
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if keep is not None:
            # Finite, so that a sequence of which nothing is kept has weights that can be set to zero.
            scores = scores.masked_fill(~keep[:, None], torch.finfo(scores.dtype).min)
        weights = softmax_over_positions(scores[:, None], segments, pick_pooled("auto", x.device))[:, 0, 0]
        return weights if keep is None else weights.masked_fill(~keep, 0)
