"""What to take out of a model and how to treat long sequences: settings shared by the library and the pipelines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from protlat.config import Config

VectorKind = Literal["mean", "per_tok", "cls"]
KINDS: tuple[VectorKind, ...] = ("mean", "per_tok", "cls")


class VectorConfig(Config):
    """Which vectors are written."""

    include: tuple[VectorKind, ...] = ("mean",)
    """Vector kinds: mean (over residues only), per_tok (L rows for L residues), cls (the vector at <cls>)."""
    repr_layers: tuple[int, ...] = (-1,)
    """Layers to take: 0 is the token embedding, -1 the last."""
    store: Literal["float16", "float32"] = "float32"
    """Number type of the written vectors."""

    @field_validator("include", "repr_layers")
    @classmethod
    def _no_repeats(cls, value: tuple[object, ...]) -> tuple[object, ...]:
        if not value:
            raise ValueError("at least one is needed")
        return tuple(dict.fromkeys(value))

    @field_validator("include")
    @classmethod
    def _in_fixed_order(cls, value: tuple[VectorKind, ...]) -> tuple[VectorKind, ...]:
        # The order in which kinds were asked for must not change the file.
        return tuple(kind for kind in KINDS if kind in value)


class LongConfig(Config):
    """What happens to long sequences; by default nothing: they go through whole."""

    policy: Literal["whole", "window", "cut", "skip"] = "whole"
    """whole: embed as they are; window: overlapping windows, blended; cut: keep the first residues; skip: leave out."""
    max_length: int | None = Field(default=None, ge=1)
    """Longest sequence in residues that cut and skip let through unchanged; window: longest that is not windowed
    (default: the window)."""
    window: int = Field(default=4096, ge=2)
    """Residues of one window (policy window)."""
    overlap: int = Field(default=512, ge=0)
    """Residues that neighbouring windows share and blend linearly (policy window)."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.policy in ("cut", "skip") and self.max_length is None:
            raise ValueError(
                f"--long {self.policy} needs --max-length: the longest sequence, in residues, that is kept whole"
            )
        if self.policy == "whole" and self.max_length is not None:
            raise ValueError("--max-length has no meaning with --long whole; add --long window, cut or skip")
        if self.policy == "window" and 2 * self.overlap > self.window:
            raise ValueError(f"--overlap {self.overlap} must be at most half of --window {self.window}")
        return self

    @property
    def threshold(self) -> int | None:
        """Longest sequence, in residues, that the policy leaves alone; None: all."""
        if self.policy == "whole":
            return None
        return self.max_length if self.max_length is not None else self.window
