"""What feed-forward layers of every kind share: rows do not depend on each other, so they may pass a few at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from pydantic import Field
from torch import nn
from torch.utils.checkpoint import checkpoint

from protlat.config import Config
from protlat.ops.segments import rounded_size

# Rows that pass the hidden layer at once without a graph: it is the widest tensor of the model, 2.6 GB for a million
# tokens of width 320. Fewer rows at once are not faster, more take more memory.
ROWS_AT_ONCE = 16_384


class RowWiseConfig(Config):
    """Settings that every kind of feed-forward has."""

    chunks: int = Field(1, ge=1)
    """Parts that the rows pass in, one after the other; more than 1 saves memory: inner tensors are recomputed."""


class RowWise(nn.Module, ABC):
    """A function of each row of (T, E) alone, computed in slabs.

    Parameters
    ----------
    chunks : int
        Slabs. In training the inner tensors of all slabs but one are dropped and computed again in the backward pass.
    """

    def __init__(self, chunks: int) -> None:
        super().__init__()
        self.chunks = chunks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(T, E) -> (T, E)."""
        with_graph = torch.is_grad_enabled()
        # Rounded, so that slabs come in few sizes: see `protlat.models.padding.round_up`.
        rows = len(x) if self.chunks == 1 else rounded_size(-(-len(x) // self.chunks))
        if not with_graph:
            rows = min(rows, ROWS_AT_ONCE)
        if rows >= len(x) and (self.chunks == 1 or not with_graph):
            return self.rows(x)
        call: Callable[[torch.Tensor], torch.Tensor] = self.recomputed if with_graph else self.rows
        return torch.cat([call(part) for part in x.split(rows)])

    def recomputed(self, x: torch.Tensor) -> torch.Tensor:
        """The layer on some rows; its inner tensors are dropped until the backward pass."""
        out: torch.Tensor = checkpoint(self.rows, x, use_reentrant=False)
        return out

    @abstractmethod
    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """The layer itself on some rows, (N, E) -> (N, E)."""

    @abstractmethod
    def start_output(self, std: float) -> None:
        """Set the starting weights of what the layer adds to the residual stream."""
