"""Axial block: attention along positions of equal offset modulo a width, so that any two tokens are two hops apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import Field

from protlat.config import Config
from protlat.nn.attention.layer import AttentionLayer
from protlat.nn.block import Block
from protlat.nn.norms import NormKind
from protlat.nn.row_wise import RowWise
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments


class AxialBlockConfig(Config):
    """A block behind each block, whose attention runs along positions of equal offset modulo `width`."""

    width: int = Field(ge=2)
    """Positions per row; tokens of one column attend to each other. Windows of about this width reach the rest."""
    scale: float = Field(1.0, gt=0)
    """Factor on the output of its heads; the reference transformer (LAT) has head_dim ** -0.5."""


class AxialGroups(NamedTuple):
    """Tokens in the order of (sequence, offset, position).

    Attributes
    ----------
    order : torch.Tensor, shape (T,), int64
        Packed position of each row.
    inverse : torch.Tensor, shape (T,), int64
        Row of each packed position.
    segments : Segments
        One group for each offset that a sequence has, of unequal lengths where W does not divide it.
    columns : torch.Tensor, shape (G,), int64
        sequence * W + offset of each group.
    """

    order: torch.Tensor
    inverse: torch.Tensor
    segments: Segments
    columns: torch.Tensor


def axial_groups(segments: Segments, width: int) -> AxialGroups:
    """Groups of tokens whose positions are equal modulo `width`, made once per batch."""

    def make() -> AxialGroups:
        column = segments.ids * width + segments.positions % width
        # Stable: positions of a group stay in order.
        order = column.argsort(stable=True)
        lengths = torch.bincount(column, minlength=len(segments) * width)
        columns = lengths.nonzero().flatten()
        offsets = None
        if segments.offsets is not None:
            first = torch.tensor(segments.offsets, device=segments.device)[columns // width]
            # Earlier positions of the same offset
            offsets = ((first - columns % width + width - 1) // width).clamp_min(0).tolist()
        groups = Segments(lengths[columns].tolist(), segments.device, offsets)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return AxialGroups(order, inverse, groups, columns)

    return segments.derive(("axial", width), make)


class AxialBlock(Block):
    """A pre-norm block whose attention treats each group of `axial_groups` as a sequence of its own.

    Parameters
    ----------
    width : int
    d_model, attention, feed_forward, norm, dropout, attention_dropout
        As in `Block`.

    Notes
    -----
    Cost as of a block whose heads are all global. The state of a causal one holds, for each sequence, the memories of
    `width` columns.

    References
    ----------
    Ho et al. 2019, "Axial attention in multidimensional transformers", section 3.
    """

    def __init__(
        self,
        width: int,
        d_model: int,
        attention: AttentionLayer,
        feed_forward: RowWise,
        norm: NormKind,
        dropout: float,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, attention, feed_forward, norm, False, dropout, attention_dropout=attention_dropout)
        self.width = width

    def mixed(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None) -> torch.Tensor:
        """Attention of normed x (T, E) within groups."""
        groups = axial_groups(segments, self.width)
        if state is None:
            return self.attention(x[groups.order], groups.segments)[groups.inverse]
        columns = _ColumnState(state, groups.columns, (len(segments), self.width))
        return self.attention(x[groups.order], groups.segments, columns)[groups.inverse]


class _ColumnState(RecurrentState):
    """The state of the columns that a call reads, out of the W columns of every sequence.

    Outside stand memories (S, W, ...), zero where nothing was read: that is no memory, by the rule of `RecurrentState`,
    since such a column begins at offset 0.
    """

    def __init__(self, outer: RecurrentState, rows: torch.Tensor, shape: tuple[int, int]) -> None:
        super().__init__()
        self.outer, self.rows, self.shape = outer, rows, shape

    def sub(self, name: str) -> _ColumnState:
        return _ColumnState(self.outer.sub(name), self.rows, self.shape)

    def get(self, name: str) -> torch.Tensor | None:
        memory = self.outer.get(name)
        return None if memory is None else memory.flatten(0, 1)[self.rows]

    def put(self, name: str, value: torch.Tensor) -> None:
        before = self.outer.get(name)
        sequences, width = self.shape
        memory = value.new_zeros(sequences * width, *value.shape[1:]) if before is None else before.flatten(0, 1)
        self.outer.put(name, memory.index_copy(0, self.rows, value).unflatten(0, self.shape))
