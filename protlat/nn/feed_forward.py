"""Position-wise feed-forward layers, plain and gated; `FeedForwardConfig` is the registry of all kinds."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from protlat.errors import ConfigError
from protlat.nn.product_key import ProductKeyConfig
from protlat.nn.row_wise import RowWise, RowWiseConfig


def hidden_size(dim: int, expansion: float) -> int:
    """Hidden width of a feed-forward layer.

    Raises
    ------
    ConfigError
        It would be zero.
    """
    size = round(dim * expansion)
    if size == 0:
        raise ConfigError(
            f"feed_forward: expansion {expansion:g} of {dim} channels leaves none; use at least {1 / dim:g}"
        )
    return size


class FeedForward(RowWise):
    """Linear, GELU, linear."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float, bias: bool, chunks: int = 1) -> None:
        super().__init__(chunks)
        self.up = nn.Linear(dim, hidden_dim, bias)
        self.down = nn.Linear(hidden_dim, dim, bias)
        self.dropout = nn.Dropout(dropout)

    def start_output(self, std: float) -> None:
        nn.init.normal_(self.down.weight, std=std)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        if torch.is_grad_enabled():
            return self.down(self.dropout(F.gelu(hidden)))
        # Without a graph the widest tensor of the model need not exist twice.
        return self.down(self.dropout(torch.ops.aten.gelu_(hidden)))


class GatedFeedForward(RowWise):
    """down(act(a) * b) with a and b from one projection.

    References
    ----------
    Shazeer 2020, "GLU variants improve Transformer", equation 5 (GEGLU, SwiGLU).
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        dropout: float,
        bias: bool,
        activation: Literal["gelu", "silu"],
        chunks: int = 1,
    ) -> None:
        super().__init__(chunks)
        self.up = nn.Linear(dim, 2 * hidden_dim, bias)
        self.down = nn.Linear(hidden_dim, dim, bias)
        self.dropout = nn.Dropout(dropout)
        self.activation = activation

    def start_output(self, std: float) -> None:
        nn.init.normal_(self.down.weight, std=std)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        opened = F.gelu(gate) if self.activation == "gelu" else F.silu(gate)
        return self.down(self.dropout(opened * value))


class GeluConfig(RowWiseConfig):
    """Linear, GELU, linear: 8 E^2 weights at expansion 4."""

    kind: Literal["gelu"] = "gelu"
    expansion: float = Field(4.0, gt=0)
    """Hidden width as a multiple of the model width."""

    bias: bool = True
    """Whether the two linear layers have a bias; without one they run faster, since a bias is a pass of its own."""

    def build(self, dim: int, dropout: float) -> RowWise:
        return FeedForward(dim, hidden_size(dim, self.expansion), dropout, self.bias, self.chunks)


class GluConfig(RowWiseConfig):
    """GELU-gated linear unit: 12 E^2 weights at expansion 4."""

    kind: Literal["glu"] = "glu"
    expansion: float = Field(4.0, gt=0)
    """Hidden width as a multiple of the model width."""

    bias: bool = True
    """Whether the two linear layers have a bias; without one they run faster, since a bias is a pass of its own."""

    def build(self, dim: int, dropout: float) -> RowWise:
        return GatedFeedForward(dim, hidden_size(dim, self.expansion), dropout, self.bias, "gelu", self.chunks)


class SwigluConfig(RowWiseConfig):
    """SiLU-gated linear unit: 8 E^2 weights at the default expansion of 8/3."""

    kind: Literal["swiglu"] = "swiglu"
    expansion: float = Field(8 / 3, gt=0)
    """Hidden width as a multiple of the model width, rounded to a multiple of 16."""

    bias: bool = True
    """Whether the two linear layers have a bias; without one they run faster, since a bias is a pass of its own."""

    def build(self, dim: int, dropout: float) -> RowWise:
        hidden_dim = max(16, round(dim * self.expansion / 16) * 16)
        return GatedFeedForward(dim, hidden_dim, dropout, self.bias, "silu", self.chunks)


FeedForwardConfig = Annotated[GeluConfig | GluConfig | SwigluConfig | ProductKeyConfig, Field(discriminator="kind")]
