"""Settings of an encoder."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config
from protlat.nn.attention import AnyAttention, EfficientAttentionConfig, WindowAttentionConfig
from protlat.nn.attention.forget import check_forget_gate
from protlat.nn.axial import AxialBlockConfig
from protlat.nn.cross_attention import AnyContext
from protlat.nn.feed_forward import FeedForwardConfig, GeluConfig
from protlat.nn.gate import GateConfig
from protlat.nn.local_conv import LocalConvConfig
from protlat.nn.norms import NormKind
from protlat.nn.positions import NoPositionsConfig, PositionsConfig


class DropoutConfig(Config):
    """Shares of values dropped in training. Attention weights have their own setting in each kind of head that has weights."""

    embedding: float = Field(0.0, ge=0, lt=1)
    """After the token embedding."""
    residual: float = Field(0.0, ge=0, lt=1)
    """On what attention and feed-forward layers add to the residual stream."""
    attention_layer: float = Field(0.0, ge=0, lt=1)
    """On what attention layers add, before `residual`."""
    feed_forward: float = Field(0.0, ge=0, lt=1)
    """On the hidden layer of the feed-forward; on the read weights of a product-key memory."""


class ModelConfig(Config):
    """An encoder: embedding, pre-norm blocks, final norm, and the masked-token head's form."""

    d_model: int = Field(128, ge=2)
    """Model width E."""
    n_layers: int = Field(4, ge=1)
    """Number of blocks."""
    head_dim: int = Field(64, ge=2)
    """Channels per head; even where rotary angles are used."""
    attention: tuple[AnyAttention, ...] = Field(
        (WindowAttentionConfig(n_heads=1), EfficientAttentionConfig(n_heads=1)), min_length=1
    )
    """Groups of heads in every layer, each with its kind and n_heads."""
    attention_by_layer: dict[int, tuple[AnyAttention, ...]] = Field(default_factory=dict)
    """Groups of heads for single layers, by 0-based layer number, in place of `attention`."""
    causal: bool = False
    """Whether no token sees a later one: for next-token models and generation."""
    gate: GateConfig = GateConfig()
    """Sigmoid gates on what global heads write and on what leaves the heads."""
    local_conv: LocalConvConfig | None = None
    """Short depthwise convolution inside the attention layer; null for none."""
    token_shift: bool = False
    """Shift a third of the channels by one token either way before attention and feed-forward."""
    positions: PositionsConfig = NoPositionsConfig()
    """Positions added to the embedding: none, sinusoidal, learned or axial."""
    norm: NormKind = "layer"
    """layer or rms."""
    feed_forward: FeedForwardConfig = GeluConfig()
    """gelu, glu or swiglu, with its expansion, or product_key."""
    feed_forward_by_layer: dict[int, FeedForwardConfig] = Field(default_factory=dict)
    """Feed-forwards of single layers, by 0-based layer number, in place of `feed_forward`."""
    axial_block: AxialBlockConfig | None = None
    """A block behind each block whose attention runs along positions of equal offset modulo a width; null for none."""
    context: AnyContext | None = None
    """Attention to a second sequence (an encoder's output) behind each block: efficient, softmax or linformer; null for
    none."""
    dropout: DropoutConfig = DropoutConfig()
    """Shares of values dropped in training."""
    embedding_dim: int | None = Field(None, ge=1)
    """Width of a factorised token embedding, projected to d_model; null: d_model."""
    tie_output: bool = True
    """Whether the head of a language model reads out with the token embedding."""
    head: Literal["dense", "plain"] = "dense"
    """Head of a language model: dense (linear, GELU, norm, read-out) or plain (read-out, after a projection to
    embedding_dim where there is one)."""
    reversible: bool = False
    """Two residual streams, computed back from the output: activation memory does not grow with depth, for a third more
    time. Another network than the plain one, with as many weights."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass: memory of one block instead of all, for a third more time."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, layers in (
            ("attention_by_layer", self.attention_by_layer),
            ("feed_forward_by_layer", self.feed_forward_by_layer),
        ):
            for layer in layers:
                if not 0 <= layer < self.n_layers:
                    raise ValueError(f"{name}.{layer}: layers are numbered 0 to {self.n_layers - 1}")
        if self.token_shift and not self.causal and self.d_model < 3:
            raise ValueError(
                f"token_shift moves a third of the channels, and d_model {self.d_model} has no thirds; use d_model of at "
                f"least 3, or set causal: true"
            )
        if self.head == "dense" and self.embedding_dim == 1:
            raise ValueError(
                "embedding_dim 1: the norm of a dense head leaves nothing of one channel; use 2, or head plain"
            )
        if self.reversible and self.checkpoint_activations:
            raise ValueError(
                "checkpoint_activations does not act in a reversible model, which recomputes its layers anyway; use one "
                "of the two"
            )
        for layer in range(self.n_layers):
            groups = self.groups_of(layer)
            kinds = ", ".join(sorted({group.kind for group in groups}))
            if self.gate.write != "none" and not any(group.takes_write_gate for group in groups):
                raise ValueError(
                    f"gate.write acts on global heads (efficient, linear, decay), but layer {layer} has only {kinds}; use "
                    f"gate.output there, or give the layer global heads"
                )
            check_forget_gate(groups, self.gate, layer)
            axial = () if self.axial_block is None else (self.axial_group_of(layer),)
            for group in (*groups, *axial):
                if self.causal and group.why_not_causal is not None:
                    raise ValueError(f"{group.kind} heads cannot be causal: {group.why_not_causal}")
                group.check(self.causal)
                if self.gate.write == "seed":
                    group.check_seed_gate(self.causal)
            if self.head_dim % 2 and any(group.turns for group in groups):
                raise ValueError(
                    f"head_dim {self.head_dim} is odd, but rotary heads turn pairs of channels; use an even one"
                )
        return self

    def groups_of(self, layer: int) -> tuple[AnyAttention, ...]:
        """Groups of heads of one 0-based layer."""
        return self.attention_by_layer.get(layer, self.attention)

    def feed_forward_of(self, layer: int) -> FeedForwardConfig:
        """Feed-forward of one 0-based layer."""
        return self.feed_forward_by_layer.get(layer, self.feed_forward)

    def axial_group_of(self, layer: int) -> EfficientAttentionConfig:
        """Heads of the axial block of one 0-based layer: as many as the layer has, all global."""
        assert self.axial_block is not None
        n_heads = sum(group.n_heads for group in self.groups_of(layer))
        return EfficientAttentionConfig(n_heads=n_heads, scale=self.axial_block.scale)

    @property
    def max_length(self) -> int | None:
        """Longest sequence in tokens, specials included, that positions and linformer heads reach; None: any."""
        parts = [self.positions, *(group for layer in range(self.n_layers) for group in self.groups_of(layer))]
        return min((part.max_length for part in parts if hasattr(part, "max_length")), default=None)
