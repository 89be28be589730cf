"""Attention, convolution, token shift and rotation, bidirectional, on one sequence.

Shapes: q, k, v (L, H, D). All sums are taken in the dtype of the input; tests call these in float64.
"""

from __future__ import annotations

import torch


def softmax_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None = None
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v per head; `seen` (L, L) bool limits the keys of each query.

    References
    ----------
    Vaswani et al. 2017, equation 1.
    """
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)


def window_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, radius: int) -> torch.Tensor:
    """Softmax attention in which query i sees the keys with |i - j| <= radius."""
    index = torch.arange(len(q), device=q.device)
    return softmax_attention(q, k, v, (index[:, None] - index[None, :]).abs() <= radius)


def linear_attention(
    phi_q: torch.Tensor, phi_k: torch.Tensor, v: torch.Tensor, rotation: torch.Tensor | None = None
) -> torch.Tensor:
    """Weights phi(q_i) . phi(k_j), divided by their sum over j; a query whose weights are all zero reads zero.

    Parameters
    ----------
    phi_q, phi_k : torch.Tensor, shape (L, H, M)
        Non-negative features.
    v : torch.Tensor, shape (L, H, D)
    rotation : torch.Tensor, shape (L, M, M), or None
        Orthogonal matrix of each position, applied to the features in the numerator only.

    References
    ----------
    Katharopoulos et al. 2020, equation 5; Su et al. 2021 (RoFormer), equation 19.
    """
    weights = torch.einsum("ihm,jhm->hij", phi_q, phi_k)
    total = weights.sum(-1, keepdim=True)
    total = torch.where(total > 0, total, torch.ones_like(total))
    if rotation is not None:
        turned_q = torch.einsum("imn,ihn->ihm", rotation, phi_q)
        turned_k = torch.einsum("imn,ihn->ihm", rotation, phi_k)
        weights = torch.einsum("ihm,jhm->hij", turned_q, turned_k)
    return torch.einsum("hij,jhd->ihd", weights / total, v)


def efficient_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, write_gate: torch.Tensor | None = None
) -> torch.Tensor:
    """softmax over channels of q times (softmax over positions of k)^T v, as an L x L weight matrix.

    A write gate g (L, H, D) or (L, H, 1) multiplies exp(k) in the sum and in its normaliser.

    References
    ----------
    Shen et al. 2021, "Efficient attention", equation 5, without the constant scale.
    """
    features = (k - k.amax(0)).exp()
    if write_gate is not None:
        features = features * write_gate
    weights = torch.einsum("ihd,jhd->hij", q.softmax(-1), features / features.sum(0))
    return torch.einsum("hij,jhd->ihd", weights, v)


def depthwise_conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x_i + bias + sum over taps o in [-s, s] of weight[o + s] * x_{i + o}; zero outside the sequence.

    Parameters
    ----------
    x : torch.Tensor, shape (L, C)
    weight : torch.Tensor, shape (2 s + 1, C)
    bias : torch.Tensor, shape (C,)
    """
    half = len(weight) // 2
    rows = []
    for i in range(len(x)):
        total = x[i] + bias
        for o in range(-half, half + 1):
            if 0 <= i + o < len(x):
                total = total + weight[o + half] * x[i + o]
        rows.append(total)
    return torch.stack(rows)


def token_shift(x: torch.Tensor) -> torch.Tensor:
    """First third of the channels from the token before, second third in place, third third from the token after.

    Channels beyond 3 * (C // 3) stay in place; outside the sequence stands zero. x has shape (L, C).
    """
    part = x.shape[1] // 3
    out = x.clone()
    for i in range(len(x)):
        out[i, :part] = x[i - 1, :part] if i > 0 else 0
        out[i, 2 * part : 3 * part] = x[i + 1, 2 * part : 3 * part] if i + 1 < len(x) else 0
    return out


def rotary_matrix(position: int, head_dim: int, base: float) -> torch.Tensor:
    """Rotation of one position, (D, D) float64: channels 2 c and 2 c + 1 turn by position * base^(-2 c / D).

    References
    ----------
    Su et al. 2021 (RoFormer), equation 15.
    """
    matrix = torch.zeros(head_dim, head_dim, dtype=torch.float64)
    for c in range(0, head_dim, 2):
        angle = torch.tensor(position * base ** (-c / head_dim), dtype=torch.float64)
        matrix[c, c] = matrix[c + 1, c + 1] = angle.cos()
        matrix[c, c + 1], matrix[c + 1, c] = -angle.sin(), angle.sin()
    return matrix
