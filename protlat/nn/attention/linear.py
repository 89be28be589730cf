"""Global attention at linear cost: double softmax (Shen) and positive feature maps (Katharopoulos)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.nn.attention.base import AttentionConfig
from protlat.nn.attention.causal_linear import CausalEfficientAttention, CausalLinearAttention, Rotary
from protlat.nn.feature_maps import EluConfig, FeatureMapConfig
from protlat.nn.positions import rotate
from protlat.nn.state import RecurrentState
from protlat.ops.dispatch import PooledImplementation, pick_pooled
from protlat.ops.divisor import divisor
from protlat.ops.pooled import DEFAULT_CHUNK, pooled_attention, segment_mean, softmax_over_positions
from protlat.ops.segments import Segments


class EfficientAttention(nn.Module):
    """Queries softmaxed over channels read a state pooled by keys softmaxed over positions.

    Weights of a query sum to `scale`. With a write gate g, exp(k) becomes exp(k) g in the sum and in its normaliser,
    so that the weights stay a convex average.

    References
    ----------
    Shen et al. 2021, "Efficient attention: attention with linear complexities", equation 5.
    """

    def __init__(self, scale: float, rotary: Rotary, implementation: PooledImplementation, chunk: int) -> None:
        super().__init__()
        self.scale, self.rotary, self.implementation, self.chunk = scale, rotary, implementation, chunk
        self.seed_gate = False
        """Whether features are multiplied by their own sigmoid (`gate.write: seed`)."""

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
        way = pick_pooled(self.implementation, q.device)
        if self.rotary == "before":
            q, k = rotate(q, segments), rotate(k, segments)
        if write_gate is not None:
            # softmax(k + log g) is exp(k) g over its own sum.
            k = k + write_gate.clamp_min(1e-30).log()
        features_q = q.softmax(-1)
        features_k = softmax_over_positions(k, segments, way, self.chunk)
        del q, k  # turned copies need not live beside their features
        if self.seed_gate:
            features_k = features_k * features_k.sigmoid()
        if self.rotary is True:
            features_q, features_k = rotate(features_q, segments), rotate(features_k, segments)
        out = pooled_attention(features_q, features_k, v, segments, way, self.chunk)
        return out if self.scale == 1.0 else out * self.scale


class LinearAttention(nn.Module):
    """Weights phi(q_i) . phi(k_j), divided by their sum over j.

    With `rotary`, the numerator's features are turned by their position and the normaliser's are not.

    References
    ----------
    Katharopoulos et al. 2020, equation 5; Su et al. 2021 (RoFormer), equation 19.
    """

    def __init__(
        self, feature_map: nn.Module, eps: float, rotary: Rotary, implementation: PooledImplementation, chunk: int
    ) -> None:
        super().__init__()
        self.feature_map = feature_map
        self.seed_gate = False
        """Whether features are multiplied by their own sigmoid (`gate.write: seed`)."""
        self.eps, self.rotary, self.implementation, self.chunk = eps, rotary, implementation, chunk

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
        way = pick_pooled(self.implementation, q.device)
        if self.rotary == "before":
            q, k = rotate(q, segments), rotate(k, segments)
        features_q, features_k = self.feature_map(q), self.feature_map(k)
        if write_gate is not None:
            features_k = features_k * write_gate
        if self.seed_gate:
            features_k = features_k * features_k.sigmoid()
        # Keys are divided by their mean over the sequence, a constant per head that cancels in the quotient: sums stay
        # of the order of one at any length, and `eps` is a floor relative to the size of the features.
        key_mean = segment_mean(features_k, segments)
        size = divisor(key_mean.mean(-1, keepdim=True))
        ids = segments.ids
        wide_q = features_q.float() if features_q.dtype == torch.bfloat16 else features_q
        relative = key_mean / size
        total = (wide_q * relative[ids]).sum(-1, keepdim=True)
        floor = self.eps * wide_q.sum(-1, keepdim=True)
        lengths = torch.tensor(segments.lengths, device=v.device, dtype=size.dtype)[:, None, None]
        features_k = features_k * (1 / (size * lengths)).to(features_k.dtype)[ids]
        if self.rotary is True:
            features_q, features_k = rotate(features_q, segments), rotate(features_k, segments)
        value = pooled_attention(features_q, features_k, v, segments, way, self.chunk)
        return value / divisor(total + floor).to(value.dtype)


class GlobalAttentionConfig(AttentionConfig):
    """Settings that both kinds of global heads have."""

    takes_write_gate: ClassVar[bool] = True
    rotary: Rotary = False
    """Turn the numerator's features by their position (true), or queries and keys before they become features ("before",
    as the reference transformer does). Of causal efficient heads take "before": they have no floor under the normaliser,
    and keys of spread 5 made the turned values a thousand times what was averaged."""
    implementation: PooledImplementation = "auto"
    """auto (split on CPU, chunked on GPU), split or chunked; causal heads always run in chunks."""
    chunk: int = Field(DEFAULT_CHUNK, ge=1)
    """Tokens per chunk of the chunked form; results depend on it by rounding only."""
    blindspot: int = Field(1, ge=1)
    """Causal models: B above 1 hides from a token its own bucket of B tokens, itself included, as the reference
    transformer's blindspot_size does; 1 hides nothing, at no greater cost."""

    def check_seed_gate(self, causal: bool) -> None:
        """Global heads take it."""

    def check(self, causal: bool) -> None:
        if self.blindspot > 1 and not causal:
            raise ValueError(
                f"{self.kind} heads: blindspot {self.blindspot} acts in causal models only; set causal: true, or leave "
                f"blindspot at 1"
            )
        if self.implementation == "split" and causal:
            raise ValueError(f"{self.kind} heads: causal ones always run in chunks; use implementation auto or chunked")
        if self.implementation == "split" and self.chunk != DEFAULT_CHUNK:
            raise ValueError(
                f"{self.kind} heads: chunk {self.chunk} does not act with implementation split; use auto or chunked"
            )


class EfficientAttentionConfig(GlobalAttentionConfig):
    """Global heads: softmax over channels of q, softmax over positions of k (Shen et al. 2021)."""

    kind: Literal["efficient"] = "efficient"
    scale: float = Field(1.0, gt=0)
    """Factor on the output; the reference transformer (LAT) has head_dim ** -0.5."""

    def check_seed_gate(self, causal: bool) -> None:
        if causal:
            raise ValueError(
                "efficient heads of a causal model have no seed gate, since their keys are normalised by query; use "
                "gate.write channel or head, or linear heads"
            )

    def build(self, head_dim: int, causal: bool) -> nn.Module:
        if causal:
            return CausalEfficientAttention(self.scale, self.rotary, self.chunk, self.blindspot)
        return EfficientAttention(self.scale, self.rotary, self.implementation, self.chunk)


class LinearAttentionConfig(GlobalAttentionConfig):
    """Global heads with a positive feature map and a normaliser (Katharopoulos et al. 2020)."""

    kind: Literal["linear"] = "linear"
    feature_map: FeatureMapConfig = EluConfig()
    """Positive map applied to queries and keys: elu, relu or softmax."""
    eps: float = Field(1e-6, gt=0)
    """Floor of the normaliser, relative to the mean feature."""

    def build(self, head_dim: int, causal: bool) -> nn.Module:
        feature_map = self.feature_map.build()
        if causal:
            return CausalLinearAttention(feature_map, self.eps, self.rotary, self.chunk, self.blindspot)
        return LinearAttention(feature_map, self.eps, self.rotary, self.implementation, self.chunk)
