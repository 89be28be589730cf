"""Attention from a sequence to a context of its own, and the residual block around it."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn
from typing_extensions import Self

from protlat.config import Config
from protlat.nn.attention.linformer import HasMaps, Sharing, check_rows
from protlat.nn.feed_forward import FeedForwardConfig, GeluConfig
from protlat.nn.norms import NormKind, build_norm
from protlat.nn.row_wise import RowWise
from protlat.nn.state import RecurrentState
from protlat.ops.cross import cross_softmax, pool_context, read_pooled
from protlat.ops.linformer import read_projected
from protlat.ops.segments import Segments

Memory = tuple[torch.Tensor, ...]


class Context(NamedTuple):
    """What a model reads beside its input: sequence s of a batch reads context s.

    Attributes
    ----------
    vectors : torch.Tensor, shape (T', C)
        All contexts, end to end.
    segments : Segments
        Where each context lies.
    """

    vectors: torch.Tensor
    segments: Segments


class EfficientRead(nn.Module):
    """Queries softmaxed over channels read keys softmaxed over the context's positions (Shen et al. 2021)."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def remember(self, k: torch.Tensor, v: torch.Tensor, segments: Segments) -> Memory:
        """Keys and values (T', H, D) -> what queries need of them, (S, ...) each."""
        return (pool_context(k, v, segments),)

    def read(self, q: torch.Tensor, memory: Memory, segments: Segments) -> torch.Tensor:
        """(T, H, D) -> (T, H, D)."""
        out = read_pooled(q.softmax(-1), memory[0], segments)
        return out if self.scale == 1.0 else out * self.scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, context_segments: Segments
    ) -> torch.Tensor:
        return self.read(q, self.remember(k, v, context_segments), segments)


class LinformerRead(HasMaps):
    """Softmax over k rows that learned matrices make of the context (Wang et al. 2020)."""

    def __init__(self, max_length: int, k: int, sharing: Sharing, dropout: float) -> None:
        super().__init__(max_length, k, sharing)
        self.dropout = dropout

    def remember(self, k: torch.Tensor, v: torch.Tensor, segments: Segments) -> Memory:
        """Keys and values (T', H, D) -> projected ones, (S, K, H, D) each."""
        keys, values = self.maps(k, v, segments)
        return keys, values

    def read(self, q: torch.Tensor, memory: Memory, segments: Segments) -> torch.Tensor:
        """(T, H, D) -> (T, H, D)."""
        keys, values = memory
        return read_projected(q, keys, values, segments, self.dropout if self.training else 0.0)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, context_segments: Segments
    ) -> torch.Tensor:
        return self.read(q, self.remember(k, v, context_segments), segments)


class SoftmaxRead(nn.Module):
    """Every token sees every token of its context (Vaswani et al. 2017)."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def remember(self, k: torch.Tensor, v: torch.Tensor, segments: Segments) -> Memory:
        """Keys and values (T', H, D) -> padded ones, (S, L', H, D) each, and the lengths (S,)."""
        longest = max(segments.lengths)
        padded = (
            torch.stack([F.pad(part, (0, 0, 0, 0, 0, longest - len(part))) for part in x.split(segments.lengths)])
            for x in (k, v)
        )
        return (*padded, torch.tensor(segments.lengths, device=k.device))

    def read(self, q: torch.Tensor, memory: Memory, segments: Segments) -> torch.Tensor:
        """(T, H, D) -> (T, H, D)."""
        keys, values, lengths = memory
        seen = torch.arange(keys.shape[1], device=q.device) < lengths[:, None]
        dropout = self.dropout if self.training else 0.0
        if segments.is_step:
            # (S, H, 1, D) against (S, H, L', D)
            read = F.scaled_dot_product_attention(
                q[:, :, None], keys.transpose(1, 2), values.transpose(1, 2), seen[:, None, None], dropout
            )
            return read[:, :, 0]
        context_segments = Segments(lengths.tolist(), q.device)
        return cross_softmax(q, keys[seen], values[seen], segments, context_segments, dropout)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: Segments, context_segments: Segments
    ) -> torch.Tensor:
        return cross_softmax(q, k, v, segments, context_segments, self.dropout if self.training else 0.0)


Read = EfficientRead | LinformerRead | SoftmaxRead


class CrossAttention(nn.Module):
    """Queries from a sequence, keys and values from its context.

    Parameters
    ----------
    d_model, context_width : int
        Channels of a token of the sequence and of the context.
    n_heads, head_dim : int
    core : Read
        How queries read.
    """

    def __init__(self, d_model: int, context_width: int, n_heads: int, head_dim: int, core: Read) -> None:
        super().__init__()
        self.shape = (n_heads, head_dim)
        inner = n_heads * head_dim
        self.project_query = nn.Linear(d_model, inner, bias=False)
        self.project_context = nn.Linear(context_width, 2 * inner, bias=False)
        self.core = core
        self.mix = nn.Linear(inner, d_model)

    def remember(self, context: Context, state: RecurrentState) -> None:
        """Leave in a state what later calls need of a context."""
        k, v = self._keys_and_values(context)
        self._store(self.core.remember(k, v, context.segments), state)

    def forward(
        self,
        x: torch.Tensor,
        segments: Segments,
        context: Context | None = None,
        state: RecurrentState | None = None,
    ) -> torch.Tensor:
        """(T, E) -> (T, E); without a context, the one that the state remembers is read."""
        q = self.project_query(x).unflatten(-1, self.shape)
        if state is None:
            assert context is not None
            out = self.core(q, *self._keys_and_values(context), segments, context.segments)
        else:
            memory = self._recall(context, state)
            self._store(memory, state)
            out = self.core.read(q, memory, segments)
        return self.mix(out.flatten(1))

    def _keys_and_values(self, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        # Two products: parts of one would be laid out again by the softmax over positions, and by the backward pass.
        k, v = (F.linear(context.vectors, weight) for weight in self.project_context.weight.chunk(2))
        return k.unflatten(-1, self.shape), v.unflatten(-1, self.shape)

    def _recall(self, context: Context | None, state: RecurrentState) -> Memory:
        if context is not None:
            return self.core.remember(*self._keys_and_values(context), context.segments)
        memory: list[torch.Tensor] = []
        while (part := state.get(f"context.{len(memory)}")) is not None:
            memory.append(part)
        return tuple(memory)

    def _store(self, memory: Memory, state: RecurrentState) -> None:
        for number, part in enumerate(memory):
            state.put(f"context.{number}", part)


class CrossBlock(nn.Module):
    """x + cross_attention(norm(x), context), then x + feed_forward(norm(x)).

    Parameters
    ----------
    d_model : int
    attention : CrossAttention
    feed_forward : RowWise
    norm : "layer" or "rms"
    dropout : float
        Share dropped of what attention and feed-forward add.
    attention_dropout : float
        Share dropped of the attention's output alone.
    """

    def __init__(
        self,
        d_model: int,
        attention: CrossAttention,
        feed_forward: RowWise,
        norm: NormKind,
        dropout: float,
        attention_dropout: float,
    ) -> None:
        super().__init__()
        self.attention_norm = build_norm(norm, d_model)
        self.attention = attention
        self.feed_forward_norm = build_norm(norm, d_model)
        self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout)
        self.attention_dropout = nn.Dropout(attention_dropout)

    def forward(
        self,
        x: torch.Tensor,
        segments: Segments,
        state: RecurrentState | None = None,
        context: Context | None = None,
    ) -> torch.Tensor:
        """(T, E) -> (T, E)."""
        x = self.attend(x, segments, state, context) + x
        return self.feed(x, segments, state) + x

    def attend(
        self,
        x: torch.Tensor,
        segments: Segments,
        state: RecurrentState | None = None,
        context: Context | None = None,
    ) -> torch.Tensor:
        """What attention adds to x (T, E)."""
        memory = None if state is None else state.sub("attention")
        read = self.attention(self.attention_norm(x), segments, context, memory)
        return self.dropout(self.attention_dropout(read))

    def feed(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None = None) -> torch.Tensor:
        """What the feed-forward adds to x (T, E)."""
        return self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class ContextConfig(Config):
    """Settings that every kind of context attention has."""

    n_heads: int = Field(ge=1)
    """Heads of each context attention."""
    head_dim: int | None = Field(None, ge=1)
    """Channels per head; null: the model's."""
    width: int | None = Field(None, ge=1)
    """Channels of the context; null: d_model."""
    feed_forward: FeedForwardConfig = GeluConfig()
    """Feed-forward behind each context attention."""


class EfficientContextConfig(ContextConfig):
    """Linear cost: the context is pooled once into an H D D state (Shen et al. 2021)."""

    kind: Literal["efficient"] = "efficient"
    scale: float = Field(1.0, gt=0)
    """Factor on the output; the reference transformer (LAT) has head_dim ** -0.5."""

    def build(self) -> EfficientRead:
        return EfficientRead(self.scale)


class SoftmaxContextConfig(ContextConfig):
    """Every token sees every token of its context; its state holds the whole context."""

    kind: Literal["softmax"] = "softmax"
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights dropped in training."""

    def build(self) -> SoftmaxRead:
        return SoftmaxRead(self.dropout)


class LinformerContextConfig(ContextConfig):
    """Softmax over k rows that learned matrices make of a context of bounded length (Wang et al. 2020)."""

    kind: Literal["linformer"] = "linformer"
    max_length: int = Field(ge=1)
    """Longest context in tokens; longer ones are refused."""
    k: int = Field(256, ge=1)
    """Rows that the keys and values of a context are projected to."""
    sharing: Sharing = "headwise"
    """headwise (E and F for all heads of a layer), key_value (E = F) or layerwise (one matrix for all layers)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of attention weights dropped in training."""

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        check_rows(self.k)
        return self

    def build(self) -> LinformerRead:
        return LinformerRead(self.max_length, self.k, self.sharing, self.dropout)


AnyContext = Annotated[
    EfficientContextConfig | SoftmaxContextConfig | LinformerContextConfig, Field(discriminator="kind")
]
