"""Scaled dot-product attention with valid lengths."""

from __future__ import annotations

import torch
from torch import nn

from protlat.nn.classic.masked_softmax import masked_softmax


class ScaledDotProductAttention(nn.Module):
    """softmax(q k^T / sqrt(D)) v over the keys that are there.

    Parameters
    ----------
    dropout : float
        Share of weights dropped in training.

    References
    ----------
    Vaswani et al. 2017, equation 1.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, valid_lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        """q (B, ..., Q, D), k (B, ..., K, D), v (B, ..., K, M), lengths (B,) or (B, Q) -> (B, ..., Q, M)."""
        return torch.matmul(self.dropout(self.weights(q, k, valid_lengths)), v)

    def weights(self, q: torch.Tensor, k: torch.Tensor, valid_lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Weight of every key, (B, ..., Q, K)."""
        return masked_softmax(torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-2, -1)), valid_lengths)
