"""Attention cores. The union `AnyAttention` is their registry: a new kind is one file and one line here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protlat.nn.attention.base import AttentionConfig, AttentionCore
from protlat.nn.attention.linear import EfficientAttentionConfig, LinearAttentionConfig
from protlat.nn.attention.softmax import SoftmaxAttentionConfig
from protlat.nn.attention.window import WindowAttentionConfig

AnyAttention = Annotated[
    WindowAttentionConfig | EfficientAttentionConfig | LinearAttentionConfig | SoftmaxAttentionConfig,
    Field(discriminator="kind"),
]
# Kinds that pool keys over the whole sequence; a write gate acts on these.
POOLED_KINDS = ("efficient", "linear")

__all__ = [
    "POOLED_KINDS",
    "AnyAttention",
    "AttentionConfig",
    "AttentionCore",
    "EfficientAttentionConfig",
    "LinearAttentionConfig",
    "SoftmaxAttentionConfig",
    "WindowAttentionConfig",
]
