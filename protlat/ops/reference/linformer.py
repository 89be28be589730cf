"""Low-rank attention and cross-attention on one sequence and one context."""

from __future__ import annotations

import torch


def linformer_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, key_matrix: torch.Tensor, value_matrix: torch.Tensor
) -> torch.Tensor:
    """softmax(q (E[:n]^T k)^T / sqrt(D)) (F[:n]^T v) per head.

    Parameters
    ----------
    q : torch.Tensor, shape (L, H, D)
    k, v : torch.Tensor, shape (n, H, D)
        n = L in self-attention.
    key_matrix, value_matrix : torch.Tensor, shape (N, K)
        E and F, N at least n.

    References
    ----------
    Wang et al. 2020, "Linformer: self-attention with linear complexity", equation 7.
    """
    keys = torch.einsum("jk,jhd->khd", key_matrix[: len(k)], k)
    values = torch.einsum("jk,jhd->khd", value_matrix[: len(v)], v)
    scores = torch.einsum("ihd,khd->hik", q, keys) * q.shape[-1] ** -0.5
    return torch.einsum("hik,khd->ihd", scores.softmax(-1), values)


def cross_efficient_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax over channels of q times (softmax over positions of k)^T v; q (L, H, D), k and v (n, H, D).

    References
    ----------
    Shen et al. 2021, "Efficient attention", equation 5, without the constant scale.
    """
    weights = torch.einsum("ihd,jhd->hij", q.softmax(-1), k.softmax(0))
    return torch.einsum("hij,jhd->ihd", weights, v)


def cross_softmax_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v; q (L, H, D), k and v (n, H, D).

    References
    ----------
    Vaswani et al. 2017, equation 1.
    """
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
