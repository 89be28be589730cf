"""Where a token stands: rotary angles inside attention, sinusoidal or learned vectors added to the embedding."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.config import Config
from protlat.errors import SequenceError
from protlat.ops.segments import Segments

ROTARY_BASE = 10_000.0


def rotary_tables(
    segments: Segments, head_dim: int, dtype: torch.dtype, base: float = ROTARY_BASE
) -> tuple[torch.Tensor, ...]:
    """Cosines and sines of every token's angles, each (T, 1, D / 2), made once per batch.

    Angles are computed in float64: in float32 the fastest channel is off by 0.06 radians at position 1,000,000.
    """

    def make() -> tuple[torch.Tensor, ...]:
        frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=segments.device) / head_dim)
        angle = segments.positions[:, None, None].double() * frequency
        return angle.cos().to(dtype), angle.sin().to(dtype)

    return segments.derive(("rotary", head_dim, dtype, base), make)


def rotate(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Turn channel pairs (c, c + D/2) of x (T, H, D) by the angles of their position.

    References
    ----------
    Su et al. 2021 (RoFormer), equation 34; pairs lie half a head apart, as in ESM-2.
    """
    cos, sin = rotary_tables(segments, x.shape[-1], x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        [torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)], dim=-1
    )


class SinusoidalPositions(nn.Module):
    """Fixed sines and cosines added to the embedding; any length.

    References
    ----------
    Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        """Add positions to x (T, E)."""
        even = self.dim + self.dim % 2
        cos, sin = rotary_tables(segments, even, x.dtype)
        table = torch.cat([sin, cos], dim=-1).flatten(1)[:, : self.dim]
        return x + table


class LearnedPositions(nn.Module):
    """One trained vector per position; longer sequences are refused."""

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, dim)

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        """Add positions to x (T, E).

        Raises
        ------
        SequenceError
            A sequence is longer than the table.
        """
        if max(segments.lengths) > self.table.num_embeddings:
            raise SequenceError(
                f"a sequence of {max(segments.lengths)} tokens, but this model has learned positions for at most "
                f"{self.table.num_embeddings}; cut it, or use a model with positions none or sinusoidal"
            )
        return x + self.table(segments.positions)


class NoPositions(nn.Module):
    """Nothing added: order is known from rotary attention, windows and convolutions alone."""

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        return x


class NoPositionsConfig(Config):
    """Nothing added to the embedding; any length."""

    kind: Literal["none"] = "none"

    def build(self, dim: int) -> nn.Module:
        return NoPositions()


class SinusoidalConfig(Config):
    """Fixed sines and cosines added to the embedding; any length."""

    kind: Literal["sinusoidal"] = "sinusoidal"

    def build(self, dim: int) -> nn.Module:
        return SinusoidalPositions(dim)


class LearnedConfig(Config):
    """One trained vector per position."""

    kind: Literal["learned"] = "learned"
    max_length: int = Field(ge=1)
    """Longest sequence in tokens, specials included; longer input is refused."""

    def build(self, dim: int) -> nn.Module:
        return LearnedPositions(dim, self.max_length)


PositionsConfig = Annotated[NoPositionsConfig | SinusoidalConfig | LearnedConfig, Field(discriminator="kind")]
