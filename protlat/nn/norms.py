"""Layer norm and root-mean-square norm."""

from __future__ import annotations

from typing import Literal

from torch import nn

NormKind = Literal["layer", "rms"]


def build_norm(kind: NormKind, dim: int) -> nn.Module:
    """A norm over the last `dim` channels with a learned scale (and, for "layer", a learned offset).

    Both take their means in float32. On CPU in bf16 the layer norm runs as one fused kernel and the root-mean-square
    norm does not (2.7 times slower where measured), which is why presets use "layer".
    """
    return nn.LayerNorm(dim) if kind == "layer" else nn.RMSNorm(dim, eps=1e-5)
