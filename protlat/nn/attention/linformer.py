"""Low-rank heads for sequences up to a fixed length (Linformer)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.errors import ConfigError, SequenceError
from protlat.nn.attention.base import AttentionConfig
from protlat.nn.state import RecurrentState
from protlat.ops.linformer import project_positions, read_projected
from protlat.ops.segments import Segments

Sharing = Literal["headwise", "key_value", "layerwise"]


class PositionMaps(nn.Module):
    """The matrices E and F that take positions to rows; one and the same where F is None.

    Parameters
    ----------
    max_length : int
        L, the longest sequence.
    k : int
        Rows that keys and values are projected to.
    one_matrix : bool
        Whether keys and values share it.
    """

    def __init__(self, max_length: int, k: int, one_matrix: bool) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.empty(max_length, k).uniform_(-(k**-0.5), k**-0.5))
        self.values = None if one_matrix else nn.Parameter(torch.empty(max_length, k).uniform_(-(k**-0.5), k**-0.5))

    def forward(self, k: torch.Tensor, v: torch.Tensor, segments: Segments) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (T, H, D) -> projected ones, (S, K, H, D) each.

        Raises
        ------
        SequenceError
            A sequence is longer than the matrices.
        """
        limit = len(self.keys)
        if max(segments.lengths) > limit:
            raise SequenceError(
                f"a sequence of {max(segments.lengths)} tokens, but these linformer heads were built for at most {limit} "
                f"(max_length); cut it, or use efficient heads, which take any length"
            )
        values = self.keys if self.values is None else self.values
        return project_positions(k, self.keys, segments), project_positions(v, values, segments)


class HasMaps(nn.Module):
    """A module that reads `PositionMaps`, its own or those of the model.

    Parameters
    ----------
    max_length, k : int
    sharing : "headwise", "key_value" or "layerwise"
    """

    def __init__(self, max_length: int, k: int, sharing: Sharing) -> None:
        super().__init__()
        self.shares_layers = sharing == "layerwise"
        self.own_maps: PositionMaps | None = PositionMaps(max_length, k, sharing != "headwise")
        # In a tuple, so that weights of the model are not counted as weights of this layer too.
        self._lent: tuple[PositionMaps, ...] = ()

    @property
    def maps(self) -> PositionMaps:
        """The matrices in use."""
        return self._lent[0] if self.own_maps is None else self.own_maps

    def borrow(self, maps: PositionMaps) -> None:
        """Use matrices that another module owns in place of one's own."""
        self.own_maps = None
        self._lent = (maps,)


def share_maps(modules: Iterable[nn.Module]) -> PositionMaps | None:
    """Give all `layerwise` users among the modules one pair of maps, which the caller is to own.

    Returns
    -------
    PositionMaps or None
        None when no module shares.

    Raises
    ------
    ConfigError
        Layers ask for matrices of different sizes.
    """
    users = [module for module in modules if isinstance(module, HasMaps) and module.shares_layers]
    if not users:
        return None
    sizes = sorted({tuple(user.maps.keys.shape) for user in users})
    if len(sizes) > 1:
        named = " and ".join(f"max_length {length}, k {k}" for length, k in sizes)
        raise ConfigError(
            f"linformer heads with sharing layerwise have one matrix for all layers, but settings ask for {named}; give "
            f"them equal sizes, or use sharing key_value"
        )
    shared = users[0].maps
    for user in users:
        user.borrow(shared)
    return shared


def check_rows(k: int) -> None:
    """Refuse a projection to a single row.

    Raises
    ------
    ValueError
        With the alternative named.
    """
    if k == 1:
        raise ValueError("k 1: the only row has weight 1, so that queries and keys do nothing; use k of at least 2")


class LinformerAttention(HasMaps):
    """softmax(Q (E[:n]^T K)^T / sqrt(D)) (F[:n]^T V), n the length of the sequence.

    References
    ----------
    Wang et al. 2020, "Linformer: self-attention with linear complexity", equation 7 and section 4 (sharing).
    """

    def __init__(self, max_length: int, k: int, sharing: Sharing, dropout: float) -> None:
        super().__init__(max_length, k, sharing)
        self.dropout = dropout

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Segments,
        write_gate: torch.Tensor | None = None,
        extra: torch.Tensor | None = None,
        state: RecurrentState | None = None,
    ) -> torch.Tensor:
        keys, values = self.maps(k, v, segments)
        return read_projected(q, keys, values, segments, self.dropout if self.training else 0.0)


class LinformerAttentionConfig(AttentionConfig):
    """Low-rank heads: softmax over k rows that learned matrices make of a sequence's keys and values."""

    why_not_causal: ClassVar[str | None] = (
        "every projected key mixes all positions, later ones too; use linear, efficient or decay heads"
    )
    kind: Literal["linformer"] = "linformer"
    max_length: int = Field(ge=1)
    """Longest sequence in tokens, specials included; longer input is refused."""
    k: int = Field(256, ge=1)
    """Rows that the keys and values of a sequence are projected to."""
    sharing: Sharing = "headwise"
    """headwise (E and F for all heads of a layer), key_value (E = F) or layerwise (one matrix for all layers)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights dropped in training."""

    def check(self, causal: bool) -> None:
        super().check(causal)
        check_rows(self.k)

    def build(self, head_dim: int, causal: bool) -> LinformerAttention:
        return LinformerAttention(self.max_length, self.k, self.sharing, self.dropout)
