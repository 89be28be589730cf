"""Where a token stands: rotary angles inside attention; sinusoidal, learned or axial vectors added to the embedding."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.config import Config
from protlat.errors import SequenceError
from protlat.ops.segments import Segments

ROTARY_BASE = 10_000.0
# Rows that are turned at once without a graph: in float32 they take twice the memory of the heads, and twice again.
_ROWS_AT_ONCE = 4096
_TURN = 64


def rotary_table(segments: Segments, head_dim: int, dtype: torch.dtype, base: float = ROTARY_BASE) -> torch.Tensor:
    """exp(i angle) of every token and channel pair, complex (T, 1, D / 2), made once per batch."""

    def make() -> torch.Tensor:
        return _on_circle(segments, slice(0, segments.n_tokens), head_dim, dtype, base)[:, None]

    return segments.derive(("rotary", head_dim, dtype == torch.float64, base), make)


def _on_circle(segments: Segments, rows: slice, dim: int, dtype: torch.dtype, base: float) -> torch.Tensor:
    """exp(i angle) of some packed rows, complex (R, D / 2).

    Angles are computed in float64: in float32 the fastest channel is off by 0.06 radians at position 1,000,000. Sines in
    float64 are slow, so position 64 a + b is the product of two turns, by 64 a and by b, of which there are few.
    """
    frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=segments.device) / dim)
    narrow = torch.complex128 if dtype == torch.float64 else torch.complex64

    def turns(positions: torch.Tensor) -> torch.Tensor:
        angle = positions.double()[:, None] * frequency
        return torch.polar(torch.ones_like(angle), angle).to(narrow)

    positions = segments.positions[rows]
    if len(positions) <= _TURN:
        return turns(positions)
    fine = turns(torch.arange(_TURN, device=segments.device))
    if len(segments) == 1 and segments.offsets is None:
        first, last = rows.start // _TURN, -(-rows.stop // _TURN)
        coarse = turns(torch.arange(first, last, device=segments.device) * _TURN)
        start = rows.start - first * _TURN
        return (coarse[:, None] * fine).flatten(0, 1)[start : start + len(positions)]
    coarse = turns(torch.arange(0, segments.reach, _TURN, device=segments.device))
    return coarse[positions // _TURN] * fine[positions % _TURN]


def rotate(x: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Turn channel pairs (2 c, 2 c + 1) of x (T, H, D) by the angles of their position, in float32 at least.

    One complex product: the same with real sines and cosines takes five to ten times as long on CPU, where short
    strided rows are not vectorised.

    References
    ----------
    Su et al. 2021 (RoFormer), equation 34.
    """
    table = rotary_table(segments, x.shape[-1], x.dtype)
    if torch.is_grad_enabled() or len(x) <= _ROWS_AT_ONCE:
        return _turn(x, table)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for first in range(0, len(x), _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        out[rows] = _turn(x[rows], table[rows])
    return out


def _turn(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * table).flatten(-2).to(x.dtype)


class SinusoidalPositions(nn.Module):
    """Fixed sines and cosines, times `amplitude`, added to the embedding; any length.

    References
    ----------
    Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, dim: int, amplitude: float = 1.0) -> None:
        super().__init__()
        self.dim, self.amplitude = dim, amplitude

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        """Add positions to x (T, E)."""
        even = self.dim + self.dim % 2
        # In slabs, and not kept: for every channel of the model they would outweigh the vectors they are added to.
        waves = torch.empty(len(x), self.dim, dtype=x.dtype, device=x.device)
        for first in range(0, len(x), _ROWS_AT_ONCE):
            rows = slice(first, min(first + _ROWS_AT_ONCE, len(x)))
            turns = _on_circle(segments, rows, even, x.dtype, ROTARY_BASE)
            waves[rows] = self.amplitude * torch.cat([turns.imag, turns.real], dim=-1)[:, : self.dim]
        return x + waves


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
        check_reach(segments, self.table.num_embeddings, "learned")
        return x + self.table(segments.positions)


class AxialPositions(nn.Module):
    """The sum of two trained vectors, one of the row and one of the column where positions stand in lines of `width`.

    ceil(max_length / width) + width vectors instead of max_length; longer sequences are refused. They start like the
    token embedding (spread 0.02) and are added at the model's width. The reference transformer (LAT) starts them, and
    its tokens, with spread 1 and adds them before a factorised embedding is widened.

    References
    ----------
    Ho et al. 2019, "Axial attention in multidimensional transformers": positions as the sum of a row and a column.
    """

    def __init__(self, dim: int, max_length: int, width: int) -> None:
        super().__init__()
        self.max_length, self.width = max_length, width
        self.rows = nn.Embedding(-(-max_length // width), dim)
        self.columns = nn.Embedding(width, dim)

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        """Add positions to x (T, E).

        Raises
        ------
        SequenceError
            A sequence is longer than max_length.
        """
        check_reach(segments, self.max_length, "axial")
        positions = segments.positions
        return x + self.rows(positions // self.width) + self.columns(positions % self.width)


def check_reach(segments: Segments, max_length: int, kind: str) -> None:
    """Refuse sequences that a table of positions does not reach.

    Raises
    ------
    SequenceError
        A sequence is longer than max_length.
    """
    if segments.reach > max_length:
        raise SequenceError(
            f"a sequence of {segments.reach} tokens, but this model has {kind} positions for at most "
            f"{max_length}; cut it, or use a model with positions none or sinusoidal"
        )


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
    amplitude: float = Field(0.03, gt=0)
    """Height of the waves. 0.03 is the size of a fresh token embedding: at 1 the waves drown it, and the model does not
    learn which token it reads. Use 1 for vectors of unit size."""

    def build(self, dim: int) -> nn.Module:
        return SinusoidalPositions(dim, self.amplitude)


class LearnedConfig(Config):
    """One trained vector per position."""

    kind: Literal["learned"] = "learned"
    max_length: int = Field(ge=1)
    """Longest sequence in tokens, specials included; longer input is refused."""

    def build(self, dim: int) -> nn.Module:
        return LearnedPositions(dim, self.max_length)


class AxialConfig(Config):
    """Two trained vectors per position, of its row and its column, summed."""

    kind: Literal["axial"] = "axial"
    max_length: int = Field(ge=1)
    """Longest sequence in tokens, specials included; longer input is refused."""
    width: int = Field(128, ge=1)
    """Positions per row."""

    def build(self, dim: int) -> nn.Module:
        return AxialPositions(dim, self.max_length, self.width)


PositionsConfig = Annotated[
    NoPositionsConfig | SinusoidalConfig | LearnedConfig | AxialConfig, Field(discriminator="kind")
]
