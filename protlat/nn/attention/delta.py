"""Delta-rule heads: a causal memory that replaces what it held under a key."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from protlat.nn.attention.decay import DecayImplementation
from protlat.nn.attention.rates import DecayRates, HalfLives, check_chunk, unit_length
from protlat.nn.state import RecurrentState
from protlat.ops import fla, reference
from protlat.ops.delta import DEFAULT_CHUNK, delta_rule
from protlat.ops.segments import Segments


class DeltaAttention(nn.Module):
    """The delta rule over unit queries and keys; the share written comes from the layer's input.

    References
    ----------
    Yang et al. 2024 (DeltaNet); Yang et al. 2025 (Gated DeltaNet); Grazzi et al. 2025, for shares up to 2.
    """

    def __init__(
        self, rates: DecayRates | None, greatest_share: float, implementation: DecayImplementation, chunk: int
    ) -> None:
        super().__init__()
        self.rates, self.greatest_share, self.implementation, self.chunk = rates, greatest_share, implementation, chunk
        if implementation == "fla":
            fla.require_fla()

    def start_extra(self, bias: torch.Tensor) -> None:
        """Half of the greatest share is written, and decays start from their half-lives."""
        nn.init.zeros_(bias)

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
        assert extra is not None
        wide = torch.promote_types(v.dtype, torch.float32)
        # In low precision a key could come out longer than one, and full shares of it would let the state grow.
        q, k = unit_length(q.to(wide)), unit_length(k.to(wide))
        beta = self.greatest_share * extra[..., 0].to(wide).sigmoid()
        log_decay = None if self.rates is None else self.rates(extra[..., 1], v)
        start = None if state is None else state.get("values")
        if self.implementation == "fla":
            out, after = fla.delta_rule(q.to(v.dtype), k.to(v.dtype), v, beta, log_decay, segments, start)
        elif self.implementation == "reference":
            out, after = self._plain(q, k, v, beta, log_decay, segments, start)
        else:
            out, after = delta_rule(q, k, v, beta, log_decay, segments, start, self.chunk)
        if state is not None:
            state.put("values", after)
        return out

    @staticmethod
    def _plain(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        beta: torch.Tensor,
        log_decay: torch.Tensor | None,
        segments: Segments,
        start: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        columns = [x.to(beta.dtype).split(segments.lengths) for x in (q, k, v, beta)]
        decays = [None] * len(segments) if log_decay is None else log_decay.split(segments.lengths)
        starts = [None] * len(segments) if start is None else start.unbind(0)
        done = [reference.delta_rule(*part) for part in zip(*columns, decays, starts, strict=True)]
        return torch.cat([out for out, _ in done]).to(v.dtype), torch.stack([after for _, after in done])


class DeltaAttentionConfig(HalfLives):
    """Causal heads that overwrite what they hold under a key, with or without decay."""

    kind: Literal["delta"] = "delta"
    gated: bool = True
    """Whether the memory also decays, by a factor per token and head from the input."""
    negative_eigenvalues: bool = False
    """Write up to twice the new value, so that a token may turn the sign of what it finds."""
    implementation: DecayImplementation = "auto"
    """auto (chunked), reference (plain definition, slow), chunked, or fla (CUDA, bf16, extra `fla`)."""
    chunk: int = Field(DEFAULT_CHUNK, ge=1)
    """Tokens per chunk; results depend on it by rounding only."""

    @property
    def n_extra(self) -> int:
        return 1 + self.gated

    def check(self, causal: bool) -> None:
        super().check(causal)
        check_chunk(self.kind, self.implementation, self.chunk, DEFAULT_CHUNK)
        if not causal:
            raise ValueError(
                "delta heads are causal only: what a token overwrites depends on the order of writing, so two directions "
                "do not add up; use kind decay, or causal: true"
            )
        # Not `model_fields_set`: the settings of a model folder are all set.
        fields = type(self).model_fields
        if not self.gated and any(getattr(self, name) != fields[name].default for name in ("shortest", "longest")):
            raise ValueError("shortest and longest act with gated: true only; drop them, or set gated: true")

    def build(self, head_dim: int, causal: bool) -> DeltaAttention:
        rates = DecayRates(self.n_heads, "data", self.shortest, self.longest) if self.gated else None
        return DeltaAttention(rates, 2.0 if self.negative_eigenvalues else 1.0, self.implementation, self.chunk)
