"""How fast a head forgets: log-decays from a setting, a parameter or the data."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.nn.attention.base import AttentionConfig

DecayKind = Literal["fixed", "learned", "data"]

# No token forgets more than exp(-5): decays stay bounded away from zero, and so do the logarithms that are added up.
STEEPEST = 5.0


class DecayRates(nn.Module):
    """Log-decays -5 sigmoid(b_h + x): b_h spreads half-lives over the heads, x is 0, a parameter or projected.

    x starts at 0 and stays small, so that low precision does not round slow decays away.

    Parameters
    ----------
    n_heads : int
    kind : "fixed", "learned" or "data"
    shortest, longest : float
        Half-lives of the first and the last decaying head at the start, in tokens; geometric in between.
    no_decay_heads : int
        Heads at the end that never forget.

    References
    ----------
    Sun et al. 2023 (RetNet), equation 8, fixed decays; Yang et al. 2024 (GLA), section 4, bounded data-dependent ones.
    """

    def __init__(self, n_heads: int, kind: DecayKind, shortest: float, longest: float, no_decay_heads: int = 0) -> None:
        super().__init__()
        n = n_heads - no_decay_heads
        shares = [i / (n - 1) if n > 1 else 0.5 for i in range(n)]
        rates = [math.log(2) / (shortest * (longest / shortest) ** share) for share in shares]
        self.base = [math.log(rate / (STEEPEST - rate)) for rate in rates]
        self.no_decay_heads, self.from_data = no_decay_heads, kind == "data"
        self.offset = nn.Parameter(torch.zeros(n)) if kind == "learned" else None

    def forward(self, x: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """Log-decays in float32 or wider.

        Parameters
        ----------
        x : torch.Tensor, shape (T, H), or None
            Given for kind "data".
        like : torch.Tensor
            Where the result lives; float64 stays float64.

        Returns
        -------
        torch.Tensor, shape (T, H) for kind "data", else (H,)
        """
        wide = torch.promote_types(like.dtype, torch.float32)
        base = torch.tensor(self.base, dtype=wide, device=like.device)
        if x is not None:
            base = base + x[:, : len(self.base)].to(wide)
        elif self.offset is not None:
            base = base + self.offset.to(wide)
        log_decay = -STEEPEST * base.sigmoid()
        return nn.functional.pad(log_decay, (0, self.no_decay_heads)) if self.no_decay_heads else log_decay


class HalfLives(AttentionConfig):
    """Settings of kinds whose heads start from a spread of half-lives."""

    shortest: float = Field(16.0, ge=0.5)
    """Half-life of the first head at the start, in tokens."""
    longest: float = Field(4096.0, ge=0.5)
    """Half-life of the last decaying head at the start, in tokens; geometric in between."""

    def check(self, causal: bool) -> None:
        super().check(causal)
        if self.longest < self.shortest:
            raise ValueError(
                f"longest half-life {self.longest:g} is below the shortest, {self.shortest:g}: exchange them"
            )


def check_chunk(kind: str, implementation: str, chunk: int, default: int) -> None:
    """Refuse a chunk size that an implementation does not look at.

    Raises
    ------
    ValueError
        With the alternative named.
    """
    if implementation in ("reference", "fla") and chunk != default:
        raise ValueError(
            f"{kind} heads: chunk {chunk} does not act with implementation {implementation}; use auto or chunked"
        )


class _UnitLength(torch.autograd.Function):
    """Three passes backward, where the derivatives of a norm, a quotient and a product take eight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        wide = torch.promote_types(x.dtype, torch.float32)
        inverse = torch.where(length > 0, length.to(wide).reciprocal(), 0).to(x.dtype)
        out = x * inverse
        ctx.save_for_backward(out, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        out, inverse = ctx.saved_tensors
        wide = torch.promote_types(out.dtype, torch.float32)
        along = (out * gradient).sum(-1, keepdim=True, dtype=wide).to(out.dtype)
        return torch.addcmul(gradient, out, along, value=-1) * inverse


def unit_length(x: torch.Tensor) -> torch.Tensor:
    """x / |x| over the last dimension; zeros stay zero, without a gradient."""
    return _UnitLength.apply(x)
