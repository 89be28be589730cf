"""Banded attention with a convolution over the scores, as L x L matrices on one sequence."""

from __future__ import annotations

from collections.abc import Callable

import torch


def banded_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    taps: torch.Tensor,
    radius: int,
    *,
    causal: bool = False,
    normalise: str = "softmax",
    activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    scale: bool = True,
    remask_output: bool = True,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Rounds of [mask to the band, convolve along the keys]; then mask, normalise, and average the values.

    Scores A_ij = q_i . k_j / sqrt(D). In every round A~ is A where |i - j| <= radius (and j <= i when causal) and zero
    elsewhere, and A_ij becomes the sum over m of taps_m A~_{i, j + m}.

    Parameters
    ----------
    q, k, v : torch.Tensor, shape (L, H, D)
    taps : torch.Tensor, shape (rounds, H, 2 s + 1)
    radius : int
    causal, scale, remask_output : bool
        Without `remask_output` the last convolution reaches s keys beyond the band, never the future.
    normalise : str
        "none", "softmax", or "rmsnorm": a row over the root of its mean square, and over the root of its length.
    activation : callable or None
        Between rounds.
    eps : float
        Added to the mean square.

    Returns
    -------
    torch.Tensor, shape (L, H, D)
    """
    length, half = len(q), taps.shape[-1] // 2
    scores = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale else 1.0)
    key_minus_query = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    allowed = key_minus_query <= (0 if causal else length)
    band = allowed & (key_minus_query.abs() <= radius)
    for number, kernel in enumerate(taps):
        masked = torch.where(band, scores, 0)
        scores = torch.zeros_like(scores)
        for m in range(-half, half + 1):
            first, last = max(0, -m), min(length, length - m)
            if first < last:
                moved = torch.zeros_like(scores)
                moved[:, :, first:last] = masked[:, :, first + m : last + m]
                scores = scores + kernel[:, half + m, None, None] * moved
        if activation is not None and number < len(taps) - 1:
            scores = activation(scores)
    seen = band if remask_output else allowed & (key_minus_query.abs() <= radius + half)
    if normalise == "softmax":
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    else:
        weights = torch.where(seen, scores, 0)
    if normalise == "rmsnorm":
        count = seen.sum(-1, keepdim=True).to(scores.dtype)
        weights = weights / (weights.square().sum(-1, keepdim=True) / count + eps).sqrt() / count.sqrt()
    return torch.einsum("hij,jhd->ihd", weights, v)
