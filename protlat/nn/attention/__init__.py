"""Attention cores. The union `AnyAttention` is their registry: a new kind is one file and one line here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protlat.nn.attention.banded import BandedAttentionConfig
from protlat.nn.attention.base import AttentionConfig, AttentionCore
from protlat.nn.attention.decay import DecayAttentionConfig
from protlat.nn.attention.delta import DeltaAttentionConfig
from protlat.nn.attention.linear import EfficientAttentionConfig, LinearAttentionConfig
from protlat.nn.attention.linformer import LinformerAttentionConfig
from protlat.nn.attention.softmax import SoftmaxAttentionConfig
from protlat.nn.attention.window import WindowAttentionConfig

AnyAttention = Annotated[
    WindowAttentionConfig
    | BandedAttentionConfig
    | EfficientAttentionConfig
    | LinearAttentionConfig
    | DecayAttentionConfig
    | DeltaAttentionConfig
    | LinformerAttentionConfig
    | SoftmaxAttentionConfig,
    Field(discriminator="kind"),
]

__all__ = [
    "AnyAttention",
    "AttentionConfig",
    "AttentionCore",
    "BandedAttentionConfig",
    "DecayAttentionConfig",
    "DeltaAttentionConfig",
    "EfficientAttentionConfig",
    "LinearAttentionConfig",
    "LinformerAttentionConfig",
    "SoftmaxAttentionConfig",
    "WindowAttentionConfig",
]
