"""Product-key memory: a large table of values of which every token reads a few."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn
from typing_extensions import Self

from protlat.nn.row_wise import RowWise, RowWiseConfig


class ProductKeyMemory(RowWise):
    """Each head reads its `top_k` best of n_keys^2 values, weighted by the softmax of their scores.

    The score of value (a, b) is q1 . k1_a + q2 . k2_b with the two halves q1, q2 of the head's query, so that the best
    pairs are among the best `top_k` of either half: 2 n_keys scores instead of n_keys^2.

    Parameters
    ----------
    dim : int
        Width E of a row and of a value.
    n_heads, n_keys, top_k : int
    key_dim : int
        Width of half a query.
    dropout : float
        Share of the read weights dropped in training.
    chunks : int
        See `RowWise`.

    Notes
    -----
    Time per row O(H (E K + N K + k log k + k E)) for H heads, N keys of width K a half and k reads; memory beside
    the table O(H (K + N + k log k)). Table: n_keys^2 * E values, shared by the heads. Queries pass a layer norm instead of the
    paper's batch norm, which would let sequences of a batch see each other.

    References
    ----------
    Lample et al. 2019, "Large memory layers with product keys", section 3.
    """

    rank_1: torch.Tensor
    rank_2: torch.Tensor

    def __init__(
        self, dim: int, n_heads: int, n_keys: int, top_k: int, key_dim: int, dropout: float = 0.0, chunks: int = 1
    ) -> None:
        super().__init__(chunks)
        self.n_heads, self.n_keys, self.top_k, self.key_dim = n_heads, n_keys, top_k, key_dim
        self.project = nn.Linear(dim, n_heads * 2 * key_dim, bias=False)
        self.norm = nn.LayerNorm(key_dim)
        self.keys = nn.Parameter(torch.empty(n_heads, 2, n_keys, key_dim).normal_(std=key_dim**-0.5))
        # An embedding: its rows are read one by one, and like other embeddings they are spared from weight decay.
        self.values = nn.Embedding(n_keys**2, dim)
        self.dropout = nn.Dropout(dropout)
        # Of pairs of the i-th and j-th best halves, counted from 1, i * j - 1 others are at least as good: only those
        # with i * j <= top_k can be among the best top_k, 119 of 1,024 when top_k is 32.
        rank = torch.arange(1, top_k + 1)
        candidates = (rank[:, None] * rank <= top_k).nonzero()
        self.register_buffer("rank_1", candidates[:, 0].contiguous(), persistent=False)
        self.register_buffer("rank_2", candidates[:, 1].contiguous(), persistent=False)

    def start_output(self, std: float) -> None:
        # Lample et al.: values of unit length. A mean of many random values is small already, at any depth.
        nn.init.normal_(self.values.weight, std=self.values.embedding_dim**-0.5)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        # (N, H, 2, K), with the two halves of a query normed apart
        queries = self.norm(self.project(x).unflatten(-1, (self.n_heads, 2, self.key_dim)))
        # One product for all heads and halves: (2 H, N, K) @ (2 H, K, n_keys)
        scores = torch.matmul(queries.flatten(1, 2).transpose(0, 1), self.keys.flatten(0, 1).transpose(1, 2))
        # Sums of two scores are compared: in bfloat16 a third of the pairs would tie.
        best, index = _at_least_float32(scores).topk(self.top_k, dim=-1)
        first, second = best.unflatten(0, (self.n_heads, 2)).unbind(1)
        index_1, index_2 = index.unflatten(0, (self.n_heads, 2)).unbind(1)
        weights, chosen = (first[..., self.rank_1] + second[..., self.rank_2]).topk(self.top_k, dim=-1)
        row = index_1.gather(-1, self.rank_1[chosen]) * self.n_keys + index_2.gather(-1, self.rank_2[chosen])
        weights = self.dropout(weights.softmax(-1)).to(self.values.weight.dtype)
        # (H, N, k) -> (N, H * k): all heads add up what they read from one table
        row, weights = (part.transpose(0, 1).flatten(1) for part in (row, weights))
        read = F.embedding_bag(row, self.values.weight, mode="sum", per_sample_weights=weights)
        return read.to(x.dtype)


def _at_least_float32(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


class ProductKeyConfig(RowWiseConfig):
    """Product-key memory: n_keys^2 values, of which every head of every token reads top_k."""

    kind: Literal["product_key"] = "product_key"
    n_heads: int = Field(4, ge=1)
    """Queries per token."""
    n_keys: int = Field(128, ge=2)
    """Keys of either half; the table holds their square in values of the model width."""
    top_k: int = Field(32, ge=1)
    """Values that each head reads."""
    key_dim: int = Field(128, ge=1)
    """Channels of half a query, and of a key."""

    @model_validator(mode="after")
    def _enough_keys(self) -> Self:
        if self.top_k > self.n_keys:
            raise ValueError(f"top_k {self.top_k} is more than n_keys {self.n_keys}; use fewer, or more keys")
        if self.top_k == 1:
            raise ValueError("top_k 1: the only value read has weight 1, so that keys never learn; use at least 2")
        if self.key_dim < 3:
            raise ValueError(
                f"key_dim {self.key_dim}: the layer norm of queries leaves so few channels nothing to learn; use at least 3"
            )
        return self

    def build(self, dim: int, dropout: float) -> RowWise:
        return ProductKeyMemory(dim, self.n_heads, self.n_keys, self.top_k, self.key_dim, dropout, self.chunks)
