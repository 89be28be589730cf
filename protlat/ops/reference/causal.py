"""Causal attention, convolution and token shift on one sequence: no row reads a later one.

Shapes: q, k, v (L, H, D). All sums are taken in the dtype of the input; tests call these in float64.
"""

from __future__ import annotations

import torch

from protlat.ops.reference.basic import softmax_attention


def seen_by_blindspot(length: int, blindspot: int) -> torch.Tensor:
    """Whether query i sees key j, (L, L) bool: j <= i, or, for B > 1, j in an earlier bucket of B tokens than i."""
    index = torch.arange(length)
    if blindspot == 1:
        return index[:, None] >= index[None, :]
    return index[:, None] // blindspot > index[None, :] // blindspot


def causal_softmax_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention in which query i sees the keys j <= i.

    References
    ----------
    Vaswani et al. 2017, section 3.2.3.
    """
    return softmax_attention(q, k, v, seen_by_blindspot(len(q), 1))


def causal_window_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, radius: int) -> torch.Tensor:
    """Softmax attention in which query i sees the keys with 0 <= i - j <= radius."""
    index = torch.arange(len(q))
    back = index[:, None] - index[None, :]
    return softmax_attention(q, k, v, (back >= 0) & (back <= radius))


def causal_linear_attention(
    phi_q: torch.Tensor,
    phi_k: torch.Tensor,
    v: torch.Tensor,
    blindspot: int = 1,
    rotation: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weights phi(q_i) . phi(k_j) of the keys seen, divided by their sum; zero where there are none.

    Parameters
    ----------
    phi_q, phi_k : torch.Tensor, shape (L, H, M)
        Non-negative features.
    v : torch.Tensor, shape (L, H, D)
    blindspot : int
    rotation : torch.Tensor, shape (L, M, M), or None
        Orthogonal matrix of each position, applied to the features in the numerator only.

    References
    ----------
    Katharopoulos et al. 2020, equation 9; Su et al. 2021 (RoFormer), equation 19.
    """
    seen = seen_by_blindspot(len(v), blindspot)
    weights = torch.einsum("ihm,jhm->hij", phi_q, phi_k) * seen
    total = weights.sum(-1, keepdim=True)
    total = torch.where(total > 0, total, torch.ones_like(total))
    if rotation is not None:
        turned_q = torch.einsum("imn,ihn->ihm", rotation, phi_q)
        turned_k = torch.einsum("imn,ihn->ihm", rotation, phi_k)
        weights = torch.einsum("ihm,jhm->hij", turned_q, turned_k) * seen
    return torch.einsum("hij,jhd->ihd", weights / total, v)


def causal_exp_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    blindspot: int = 1,
    rotation: torch.Tensor | None = None,
    write_gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """`causal_linear_attention` with features softmax(q) over channels and exp(k), times the write gate.

    References
    ----------
    Shen et al. 2021, equation 5, with sums that end at the query.
    """
    features = k.exp() if write_gate is None else k.exp() * write_gate
    return causal_linear_attention(q.softmax(-1), features, v, blindspot, rotation)


def causal_depthwise_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x_i + bias + sum over taps o from 0 to K - 1 of weight[K - 1 - o] * x_{i - o}; zero before the sequence.

    Parameters
    ----------
    x : torch.Tensor, shape (L, C)
    weight : torch.Tensor, shape (K, C)
    bias : torch.Tensor, shape (C,)
    """
    rows = []
    for i in range(len(x)):
        total = x[i] + bias
        for o in range(min(len(weight), i + 1)):
            total = total + weight[len(weight) - 1 - o] * x[i - o]
        rows.append(total)
    return torch.stack(rows)


def causal_token_shift(x: torch.Tensor) -> torch.Tensor:
    """First half of the channels from the token before (zero for the first), the rest in place; x has shape (L, C)."""
    part = x.shape[1] // 2
    out = x.clone()
    for i in range(len(x)):
        out[i, :part] = x[i - 1, :part] if i > 0 else 0
    return out
