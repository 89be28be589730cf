"""Linear attention that forgets: scalar decay in both directions, and the delta rule, on one sequence.

Shapes: q, k (L, H, M), v (L, H, D), log-decays and betas (L, H). All sums are taken in the dtype of the input.
"""

from __future__ import annotations

import torch


def decay_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    causal: bool,
    own: torch.Tensor | None = None,
    normaliser: bool = False,
) -> torch.Tensor:
    """Weights q_i . k_j times the decays met on the way from j to i.

    The way from j to i counts the decay of i and of every token between, not that of j:
    exp(sum of log_decay over (j, i]) for j < i, exp(sum over [i, j)) for j > i, 1 for j = i.

    Parameters
    ----------
    q, k, v : torch.Tensor
    log_decay : torch.Tensor, shape (L, H)
        At most 0.
    causal : bool
        Only j <= i.
    own : torch.Tensor, shape (L, H), or None
        Weight of j = i in place of q_i . k_i.
    normaliser : bool
        Divide by the sum of the weights; a query whose weights are all zero reads zero.

    Returns
    -------
    torch.Tensor, shape (L, H, D)

    References
    ----------
    Dao and Gu 2024 (Mamba-2), equation 6; Hwang et al. 2024 (Hydra), section 2.3, for both directions.
    """
    length = len(q)
    weights = torch.einsum("ihm,jhm->hij", q, k)
    rows = []
    for i in range(length):
        row = []
        for j in range(length):
            between = log_decay[j + 1 : i + 1] if j <= i else log_decay[i:j]
            factor = between.sum(0).exp()
            row.append(factor * 0 if causal and j > i else factor)
        rows.append(torch.stack(row))
    # (L, L, H)
    weights = weights * torch.stack(rows).permute(2, 0, 1)
    if own is not None:
        eye = torch.eye(length, dtype=q.dtype)
        weights = weights * (1 - eye) + own.T[:, :, None] * eye
    if normaliser:
        total = weights.sum(-1, keepdim=True)
        weights = weights / torch.where(total > 0, total, torch.ones_like(total))
    return torch.einsum("hij,jhd->ihd", weights, v)


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    log_decay: torch.Tensor | None = None,
    start: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """S_i = a_i S_{i-1} + beta_i k_i (v_i - k_i^T a_i S_{i-1})^T, read as q_i^T S_i, token by token.

    Parameters
    ----------
    q, k, v : torch.Tensor
    beta : torch.Tensor, shape (L, H)
        Share of the old value under a key that is replaced by the new one.
    log_decay : torch.Tensor, shape (L, H), or None
        log a; None: a = 1.
    start : torch.Tensor, shape (H, M, D), or None

    Returns
    -------
    out : torch.Tensor, shape (L, H, D)
    state : torch.Tensor, shape (H, M, D)

    References
    ----------
    Yang et al. 2024 (DeltaNet), equation 3; Yang et al. 2025 (Gated DeltaNet), equation 10.
    """
    state = q.new_zeros(q.shape[1], q.shape[2], v.shape[2]) if start is None else start
    out = []
    for i in range(len(q)):
        if log_decay is not None:
            state = state * log_decay[i].exp()[:, None, None]
        old = torch.einsum("hm,hmd->hd", k[i], state)
        state = state + torch.einsum("h,hm,hd->hmd", beta[i], k[i], v[i] - old)
        out.append(torch.einsum("hm,hmd->hd", q[i], state))
    return torch.stack(out), state
