"""Heads of kinds decay and delta on one sequence, composed of the definitions."""

from __future__ import annotations

import math

import torch

from protlat.nn.attention import AnyAttention
from protlat.ops import reference


def plain_rates(group: AnyAttention, n_decaying: int, offset: torch.Tensor) -> torch.Tensor:
    """Log-decays in (-5, 0), (L, H); half-lives at offset 0 lie geometrically between shortest and longest."""
    half_lives = torch.logspace(math.log2(group.shortest), math.log2(group.longest), n_decaying, 2, dtype=torch.float64)
    decay = -5 * torch.sigmoid(torch.logit(math.log(2) / half_lives / 5) + offset[:, :n_decaying])
    return torch.cat([decay, torch.zeros_like(offset[:, n_decaying:])], 1)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def plain_decay(
    group: AnyAttention,
    core: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor | None,
    extra: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """(L, H, D)."""
    phi = group.feature_map.build()
    q, k = phi(q), phi(k)
    if group.normalise == "l2":
        q, k = unit(q), unit(k)
    k = k if gate is None else k * gate
    offset = torch.zeros(len(q), group.n_heads, dtype=torch.float64)
    if group.decay == "learned":
        offset = offset + torch.nn.functional.pad(core.rates.offset, (0, group.no_decay_heads))
    elif group.decay == "data":
        offset = extra[..., 0]
    decay = plain_rates(group, group.n_heads - group.no_decay_heads, offset)
    own = extra[..., -1] if group.diagonal else None
    return reference.decay_attention(q, k, v, decay, causal, own, group.normaliser)


def plain_delta(
    group: AnyAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extra: torch.Tensor
) -> torch.Tensor:
    """(L, H, D)."""
    beta = (2 if group.negative_eigenvalues else 1) * extra[..., 0].sigmoid()
    decay = plain_rates(group, group.n_heads, extra[..., 1]) if group.gated else None
    return reference.delta_rule(unit(q), unit(k), v, beta, decay)[0]
