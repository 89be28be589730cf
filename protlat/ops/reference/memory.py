"""Product-key memory by its definition: every value is scored."""

from __future__ import annotations

import torch


def product_key_memory(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, top_k: int) -> torch.Tensor:
    """Sum over heads of the softmax over the `top_k` best of all N^2 scores, times their values.

    Parameters
    ----------
    queries : torch.Tensor, shape (L, H, 2, K)
    keys : torch.Tensor, shape (H, 2, N, K)
    values : torch.Tensor, shape (N * N, E)
        Value a * N + b has the score q1 . k1_a + q2 . k2_b.

    References
    ----------
    Lample et al. 2019, "Large memory layers with product keys", equations 2 to 5.
    """
    halves = torch.einsum("lhpk,hpnk->lhpn", queries, keys)
    scores = (halves[:, :, 0, :, None] + halves[:, :, 1, None, :]).flatten(-2)
    out = torch.zeros(len(queries), values.shape[1], dtype=values.dtype)
    for head in range(scores.shape[1]):
        best, index = scores[:, head].topk(top_k, dim=-1)
        out = out + torch.einsum("lk,lke->le", best.softmax(-1), values[index])
    return out
