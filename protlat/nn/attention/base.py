"""The contract of an attention core, and the settings all cores share."""

from __future__ import annotations

from typing import Protocol

import torch
from pydantic import Field

from protlat.config import Config
from protlat.ops.segments import Segments


class AttentionCore(Protocol):
    """Values for some heads of a layer: packed q, k, v in, packed values out.

    Every sequence is treated as if it were alone: a core never moves information across a border of `segments`.
    """

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Segments,
        write_gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q, k, v (T, H, D) -> (T, H, D); `write_gate` (T, H, D) or (T, H, 1) in (0, 1) where the core takes one."""
        ...


class AttentionConfig(Config):
    """Settings that every kind of head has."""

    n_heads: int = Field(ge=1)
    """How many of the layer's heads are of this kind."""
