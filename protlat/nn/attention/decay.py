"""Linear attention that forgets with distance: one scalar decay per head, in one or both directions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.config import Config
from protlat.errors import ConfigError
from protlat.nn.attention.rates import DecayKind, DecayRates, HalfLives, check_chunk, unit_length
from protlat.nn.feature_maps import EluConfig, ReluConfig, SoftmaxConfig
from protlat.nn.state import RecurrentState
from protlat.ops import fla, reference
from protlat.ops.decay import DEFAULT_CHUNK, Memory, decay_attention, decay_attention_from
from protlat.ops.segments import Segments

DecayImplementation = Literal["auto", "reference", "chunked", "fla"]


class NoMapConfig(Config):
    """Queries and keys as they are; weights may be negative."""

    kind: Literal["none"] = "none"

    def build(self) -> nn.Module:
        return nn.Identity()


DecayFeatureMapConfig = Annotated[NoMapConfig | EluConfig | ReluConfig | SoftmaxConfig, Field(discriminator="kind")]


class DecayAttention(nn.Module):
    """Weights phi(q_i) . phi(k_j) that fade by the decays met between i and j (see `protlat.ops.decay`).

    A write gate multiplies phi(k), in the sum and in the normaliser alike.

    References
    ----------
    Dao and Gu 2024 (Mamba-2), section 6; Hwang et al. 2024 (Hydra), section 2.3.
    """

    def __init__(
        self,
        feature_map: nn.Module,
        rates: DecayRates,
        causal: bool,
        l2: bool,
        normaliser: bool,
        implementation: DecayImplementation,
        chunk: int,
    ) -> None:
        super().__init__()
        self.feature_map, self.rates, self.causal = feature_map, rates, causal
        self.l2, self.normaliser, self.implementation, self.chunk = l2, normaliser, implementation, chunk
        if implementation == "fla":
            fla.require_fla()

    def start_extra(self, bias: torch.Tensor) -> None:
        """Decays start from their half-lives, own weights (the last column, where there is one) from 1."""
        nn.init.zeros_(bias)
        if bias.shape[1] > self.rates.from_data:
            bias.detach()[:, -1] = 1.0

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        segments: Segments,
        write_gate: torch.Tensor | None = None,
        extra: torch.Tensor | None = None,
        state: RecurrentState | None = None,
    ) -> torch.Tensor:
        q, k = self.feature_map(q), self.feature_map(k)
        if self.l2:
            q, k = unit_length(q), unit_length(k)
        if write_gate is not None:
            k = k * write_gate
        columns = () if extra is None else extra.unbind(-1)
        log_decay = self.rates(columns[0] if self.rates.from_data else None, v)
        own = columns[-1] if len(columns) > self.rates.from_data else None
        if state is None:
            return self._attend(q, k, v, log_decay, own, segments)
        return self._attend_from(state, q, k, v, log_decay, own, segments)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        log_decay: torch.Tensor,
        own: torch.Tensor | None,
        segments: Segments,
    ) -> torch.Tensor:
        if self.implementation == "fla":
            return fla.decay_attention(q, k, v, log_decay.expand(len(q), -1), segments, self.causal, own)[0]
        if self.implementation == "reference":
            lengths = list(segments.lengths)
            owns = [None] * len(lengths) if own is None else own.split(lengths)
            decays = log_decay.to(v.dtype).expand(len(q), -1)
            parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), decays.split(lengths), owns, strict=True)
            return torch.cat(
                [reference.decay_attention(a, b, c, g, self.causal, own, self.normaliser) for a, b, c, g, own in parts]
            )
        return decay_attention(q, k, v, log_decay, segments, self.causal, own, self.normaliser, self.chunk)

    def _attend_from(
        self,
        state: RecurrentState,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        log_decay: torch.Tensor,
        own: torch.Tensor | None,
        segments: Segments,
    ) -> torch.Tensor:
        values = state.get("values")
        if self.implementation == "reference":
            raise ConfigError("attention.implementation: reference keeps no state; use implementation: chunked")
        if self.implementation == "fla":
            out, after = fla.decay_attention(q, k, v, log_decay.expand(len(q), -1), segments, True, own, values)
            state.put("values", after)
            return out
        start = None if values is None else Memory(values, state.get("keys"))
        out, memory = decay_attention_from(start, q, k, v, log_decay, segments, own, self.normaliser, self.chunk)
        state.put("values", memory.values)
        if memory.keys is not None:
            state.put("keys", memory.keys)
        return out


class DecayAttentionConfig(HalfLives):
    """Global heads whose weights fade with distance, at linear cost, bidirectional or causal."""

    takes_write_gate: ClassVar[bool] = True
    kind: Literal["decay"] = "decay"
    decay: DecayKind = "data"
    """fixed: constants; learned: the same start, trained, one per head; data: one per token and head, from the input."""
    no_decay_heads: int = Field(0, ge=0)
    """How many of the heads never forget: true global pooling."""
    feature_map: DecayFeatureMapConfig = NoMapConfig()
    """Map of queries and keys: none, or a positive one: elu, relu, softmax."""
    normalise: Literal["l2", "none"] = "l2"
    """Whether mapped queries and keys are set to unit length."""
    normaliser: bool = False
    """Divide by the sum of the weights; needs a positive feature map."""
    diagonal: bool = False
    """Give the token itself a free weight from the layer's input, in place of q . k (quasiseparable)."""
    implementation: DecayImplementation = "auto"
    """auto (chunked), reference (plain definition, slow), chunked, or fla (CUDA, extra `fla`)."""
    chunk: int = Field(DEFAULT_CHUNK, ge=1)
    """Tokens per chunk; results depend on it by rounding only."""

    @property
    def n_extra(self) -> int:
        return (self.decay == "data") + self.diagonal

    def check(self, causal: bool) -> None:
        super().check(causal)
        if self.no_decay_heads >= self.n_heads:
            raise ValueError(
                f"no_decay_heads {self.no_decay_heads} leaves none of {self.n_heads} decay heads to decay; use kind "
                f"linear or efficient for heads that never forget"
            )
        if self.normaliser and self.feature_map.kind == "none":
            raise ValueError(
                "normaliser: weights may be negative without a map; set feature_map to elu, relu or softmax"
            )
        if self.normaliser and self.diagonal:
            raise ValueError(
                "diagonal: a free weight may be negative, so it cannot be normalised; set normaliser: false"
            )
        if self.normaliser and self.implementation == "fla":
            raise ValueError("normaliser: implementation fla has none; use implementation: chunked")
        check_chunk(self.kind, self.implementation, self.chunk, DEFAULT_CHUNK)

    def build(self, head_dim: int, causal: bool) -> DecayAttention:
        rates = DecayRates(self.n_heads, self.decay, self.shortest, self.longest, self.no_decay_heads)
        return DecayAttention(
            self.feature_map.build(),
            rates,
            causal,
            self.normalise == "l2",
            self.normaliser,
            self.implementation,
            self.chunk,
        )
