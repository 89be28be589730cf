"""Gates of an attention layer: what is written into the pooled state, and what leaves the layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config


class GateConfig(Config):
    """Sigmoid gates computed from the layer's input."""

    write: Literal["none", "channel", "head", "seed"] = "none"
    """Gate on the keys of global heads, one value per channel or per head; it acts on the sum and its normaliser. seed:
    no weights, the key's features times their own sigmoid (about one half of them in long sequences), for fidelity."""
    output: Literal["none", "channel", "head"] = "none"
    """Gate on the values that leave the heads, after a root-mean-square norm over each head."""
    norm: bool = True
    """Whether the output gate is preceded by the norm over each head."""
    forget: Literal["none", "head"] = "none"
    """Gate on what linear heads have pooled: it fades by a factor per token and head, in the sum and its normaliser."""
    head_norm: bool = False
    """Root-mean-square norm over each head without an output gate, which has its own (`norm`)."""
    write_bias: float = Field(2.0)
    """Start of the write gate's bias; 2 lets 88 % through."""

    @model_validator(mode="after")
    def _parts_act(self) -> Self:
        if self.write == "none" and self.write_bias != 2.0:
            raise ValueError(
                "write_bias does not act without a write gate; set write to channel or head, or leave it at 2"
            )
        if self.output == "none" and not self.norm:
            raise ValueError(
                "norm: false does not act without an output gate; leave it at true, or set output to channel or head"
            )
        if self.write == "seed" and self.write_bias != 2.0:
            raise ValueError(
                "write_bias does not act with write: seed, which has no weights; use write channel or head"
            )
        return self

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.forget != "none" and self.write == "seed":
            raise ValueError("write: seed does not act on heads with a forget gate; use write channel or head")
        if self.head_norm and self.output != "none":
            raise ValueError("head_norm acts without an output gate; with one, gate.norm (on by default) does the same")
        return self

    @property
    def is_open(self) -> bool:
        """Whether no gate is asked for."""
        return self.write == "none" and self.output == "none" and self.forget == "none"
