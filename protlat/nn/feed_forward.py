"""Position-wise feed-forward layers, plain and gated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from protlat.config import Config

# Rows that pass the hidden layer at once without a graph: it is the widest tensor of the model, 2.6 GB for a million
# tokens of width 320. Fewer rows at once are not faster.
_ROWS_AT_ONCE = 65_536


def _in_slabs(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A row-wise function of x (T, E), on so many rows at once that its inner tensors stay small."""
    if len(x) <= _ROWS_AT_ONCE or torch.is_grad_enabled():
        return function(x)
    return torch.cat([function(rows) for rows in x.split(_ROWS_AT_ONCE)])


class FeedForward(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden_dim, bias)
        self.down = nn.Linear(hidden_dim, dim, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(T, E) -> (T, E)."""
        return _in_slabs(self._whole, x)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        if torch.is_grad_enabled():
            return self.down(self.dropout(F.gelu(hidden)))
        # Without a graph the widest tensor of the model need not exist twice.
        return self.down(self.dropout(torch.ops.aten.gelu_(hidden)))


class GatedFeedForward(nn.Module):
    """down(act(a) * b) with a and b from one projection.

    References
    ----------
    Shazeer 2020, "GLU variants improve Transformer", equation 5 (GEGLU, SwiGLU).
    """

    def __init__(
        self, dim: int, hidden_dim: int, dropout: float, bias: bool, activation: Literal["gelu", "silu"]
    ) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 2 * hidden_dim, bias)
        self.down = nn.Linear(hidden_dim, dim, bias)
        self.dropout = nn.Dropout(dropout)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(T, E) -> (T, E)."""
        return _in_slabs(self._whole, x)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        opened = F.gelu(gate) if self.activation == "gelu" else F.silu(gate)
        return self.down(self.dropout(opened * value))


class GeluConfig(Config):
    """Linear, GELU, linear: 8 E^2 weights at expansion 4."""

    kind: Literal["gelu"] = "gelu"
    expansion: float = Field(4.0, gt=0)
    """Hidden width as a multiple of the model width."""

    bias: bool = True
    """Whether the two linear layers have a bias; without one they run faster, since a bias is a pass of its own."""

    def build(self, dim: int, dropout: float) -> nn.Module:
        return FeedForward(dim, round(dim * self.expansion), dropout, self.bias)


class GluConfig(Config):
    """GELU-gated linear unit: 12 E^2 weights at expansion 4."""

    kind: Literal["glu"] = "glu"
    expansion: float = Field(4.0, gt=0)
    """Hidden width as a multiple of the model width."""

    bias: bool = True
    """Whether the two linear layers have a bias; without one they run faster, since a bias is a pass of its own."""

    def build(self, dim: int, dropout: float) -> nn.Module:
        return GatedFeedForward(dim, round(dim * self.expansion), dropout, self.bias, "gelu")


class SwigluConfig(Config):
    """SiLU-gated linear unit: 8 E^2 weights at the default expansion of 8/3."""

    kind: Literal["swiglu"] = "swiglu"
    expansion: float = Field(8 / 3, gt=0)
    """Hidden width as a multiple of the model width, rounded to a multiple of 16."""

    bias: bool = True
    """Whether the two linear layers have a bias; without one they run faster, since a bias is a pass of its own."""

    def build(self, dim: int, dropout: float) -> nn.Module:
        return GatedFeedForward(dim, max(16, round(dim * self.expansion / 16) * 16), dropout, self.bias, "silu")


FeedForwardConfig = Annotated[GeluConfig | GluConfig | SwigluConfig, Field(discriminator="kind")]
