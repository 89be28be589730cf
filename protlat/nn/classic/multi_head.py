"""Multi-head attention of queries over keys and values that may come from elsewhere."""

from __future__ import annotations

import torch
from torch import nn

from protlat.errors import ConfigError
from protlat.nn.classic.dot_product import ScaledDotProductAttention


class MultiHeadAttention(nn.Module):
    """Four projections around scaled dot-product attention: W_o [head_1; ...; head_h].

    Parameters
    ----------
    d_model : int
        Width of the queries and of the result.
    n_heads : int
    key_dim, value_dim : int or None
        Widths of keys and values; None: d_model.
    bias : bool
        Whether the projections have one.
    dropout : float
        Share of weights dropped in training.

    Raises
    ------
    ConfigError
        d_model is no multiple of n_heads.

    References
    ----------
    Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ConfigError(f"d_model {d_model} is no multiple of n_heads {n_heads}; choose one that is")
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(key_dim or d_model, d_model, bias=bias)
        self.value = nn.Linear(value_dim or d_model, d_model, bias=bias)
        self.mix = nn.Linear(d_model, d_model, bias=bias)
        self.attend = ScaledDotProductAttention(dropout)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lengths: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """queries (B, Q, E), keys (B, K, Ek), values (B, K, Ev), lengths (B,) or (B, Q) -> (B, Q, E)."""
        projected = self.query(queries), self.key(keys), self.value(values)
        # (B, L, E) -> (B, H, L, D)
        q, k, v = (x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for x in projected)
        return self.mix(self.attend(q, k, v, valid_lengths).transpose(1, 2).flatten(2))
