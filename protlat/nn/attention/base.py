"""The contract of an attention core, and the settings all cores share."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from pydantic import Field

from protlat.config import Config
from protlat.nn.state import RecurrentState
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
        extra: torch.Tensor | None = None,
        state: RecurrentState | None = None,
    ) -> torch.Tensor:
        """Attend.

        Parameters
        ----------
        q, k, v : torch.Tensor, shape (T, H, D)
        segments : Segments
        write_gate : torch.Tensor, shape (T, H, D) or (T, H, 1), or None
            In (0, 1); given only where the config says `takes_write_gate`.
        extra : torch.Tensor, shape (T, H, n), or None
            The config's `n_extra` values per token and head, projected from the layer's input, with bias.
        state : RecurrentState or None
            Causal cores only: memories of earlier calls, read and replaced.

        Returns
        -------
        torch.Tensor, shape (T, H, D)
        """
        ...


class AttentionConfig(Config):
    """Settings that every kind of head has."""

    takes_write_gate: ClassVar[bool] = False
    """Whether `gate.write` acts on this kind."""
    why_not_causal: ClassVar[str | None] = None
    """Why this kind cannot stand in a causal model, and what to use instead; None: it can."""
    state_grows: ClassVar[bool] = False
    """Whether the state of a causal core keeps every token, so that documents cannot be read with it for ever."""

    kind: str
    """Name of the kind of heads; one constant in each kind."""
    n_heads: int = Field(ge=1)
    """How many of the layer's heads are of this kind."""

    def check(self, causal: bool) -> None:
        """Refuse settings that cannot act together; called when the model's settings are read.

        Parameters
        ----------
        causal : bool
            Whether the model is causal.

        Raises
        ------
        ValueError
            With the alternative named, in one line.
        """

    def check_seed_gate(self, causal: bool) -> None:
        """Refuse `gate.write: seed` where this kind takes a write gate but not that one.

        Raises
        ------
        ValueError
            With the alternative named, in one line.
        """
        if self.takes_write_gate:
            raise ValueError(f"{self.kind} heads have no seed gate; use gate.write channel or head")

    @property
    def n_extra(self) -> int:
        """Values per token and head that the core wants projected from the layer's input."""
        return 0

    @property
    def turns(self) -> bool:
        """Whether pairs of channels are turned by their position, so that head_dim must be even."""
        return bool(getattr(self, "rotary", False))
