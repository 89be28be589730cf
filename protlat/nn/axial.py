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
        return self._with_memories(x[groups.order], groups, len(segments), state)[groups.inverse]

    def _with_memories(
        self, rows: torch.Tensor, groups: AxialGroups, n_sequences: int, state: RecurrentState
    ) -> torch.Tensor:
        """Groups that begin here and groups that go on, apart: the former have no memory yet."""
        lengths = torch.tensor(groups.segments.lengths, device=rows.device)
        begun = torch.tensor(groups.segments.offsets or [0] * len(lengths), device=rows.device)
        columns = _Columns(n_sequences, self.width)
        out, where = [], []
        for goes_on in (False, True):
            chosen = ((begun > 0) == goes_on).nonzero().flatten()
            if len(chosen) == 0:
                continue
            token_group = torch.repeat_interleave(torch.arange(len(lengths), device=rows.device), lengths)
            tokens = torch.isin(token_group, chosen).nonzero().flatten()
            part = Segments(lengths[chosen].tolist(), rows.device, begun[chosen].tolist())
            memory = _GroupState(columns, state, groups.columns[chosen], goes_on)
            out.append(self.attention(rows[tokens], part, memory))
            where.append(tokens)
        columns.store()
        order = torch.cat(where)
        return torch.cat(out)[order.argsort()]


class _Columns:
    """Memories of all columns, gathered over the parts of a call: (S * W, ...) by name, zero where nothing was read."""

    def __init__(self, n_sequences: int, width: int) -> None:
        self.n_sequences, self.width = n_sequences, width
        self.written: dict[str, tuple[RecurrentState, str, torch.Tensor]] = {}

    def write(self, outer: RecurrentState, path: str, name: str, rows: torch.Tensor, value: torch.Tensor) -> None:
        if path in self.written:
            memory = self.written[path][2]
        else:
            before = outer.get(name)
            shape = (self.n_sequences * self.width, *value.shape[1:])
            memory = value.new_zeros(shape) if before is None else before.flatten(0, 1)
        self.written[path] = (outer, name, memory.index_copy(0, rows, value))

    def store(self) -> None:
        """Leave (S, W, ...) for the next call."""
        for outer, name, memory in self.written.values():
            outer.put(name, memory.unflatten(0, (self.n_sequences, self.width)))


class _GroupState(RecurrentState):
    """The state of some groups, as the layer inside sees it."""

    def __init__(
        self, columns: _Columns, outer: RecurrentState, rows: torch.Tensor, goes_on: bool, path: str = ""
    ) -> None:
        super().__init__()
        self.columns, self.outer, self.rows, self.goes_on, self.path = columns, outer, rows, goes_on, path

    def sub(self, name: str) -> _GroupState:
        return _GroupState(self.columns, self.outer.sub(name), self.rows, self.goes_on, f"{self.path}{name}.")

    def get(self, name: str) -> torch.Tensor | None:
        memory = self.outer.get(name) if self.goes_on else None
        return None if memory is None else memory.flatten(0, 1)[self.rows]

    def put(self, name: str, value: torch.Tensor) -> None:
        self.columns.write(self.outer, self.path + name, name, self.rows, value)
