"""Gates of an attention layer: what is written into the pooled state, and what leaves the layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protlat.config import Config


class GateConfig(Config):
    """Sigmoid gates computed from the layer's input."""

    write: Literal["none", "channel", "head"] = "none"
    """Gate on the keys of global heads, one value per channel or per head; it acts on the sum and its normaliser."""
    output: Literal["none", "channel", "head"] = "none"
    """Gate on the values that leave the heads, after a root-mean-square norm over each head."""
    norm: bool = True
    """Whether the output gate is preceded by the norm over each head."""
    write_bias: float = Field(2.0)
    """Start of the write gate's bias; 2 lets 88 % through."""

    @property
    def is_open(self) -> bool:
        """Whether no gate is asked for."""
        return self.write == "none" and self.output == "none"
