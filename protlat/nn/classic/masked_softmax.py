"""Softmax over the keys that are there."""

from __future__ import annotations

import torch


def masked_softmax(scores: torch.Tensor, valid_lengths: torch.Tensor | None = None) -> torch.Tensor:
    """Softmax over the last axis in which each query sees the first of its keys.

    Parameters
    ----------
    scores : torch.Tensor, shape (B, ..., Q, K), float
        One or more axes, such as heads, may stand between B and Q.
    valid_lengths : torch.Tensor, shape (B,) or (B, Q), integer, or None
        Keys that are there: for all queries of a batch row, or for each; None: all.

    Returns
    -------
    torch.Tensor, shape (B, ..., Q, K), dtype of scores
        Zero at hidden keys; a query without any key has a row of zeros, not of equal weights. Sums are taken in
        float32 at least.

    Raises
    ------
    ValueError
        `valid_lengths` has another shape.

    Examples
    --------
    >>> masked_softmax(torch.zeros(2, 1, 4), torch.tensor([2, 0]))
    tensor([[[0.5000, 0.5000, 0.0000, 0.0000]],
    <BLANKLINE>
            [[0.0000, 0.0000, 0.0000, 0.0000]]])
    """
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    if valid_lengths is None:
        return scores.softmax(-1, dtype=wide).to(scores.dtype)
    hidden = _hidden(scores, valid_lengths)
    # A filling of a large negative number would give a row without keys equal weights, and is -inf in float16 anyway.
    masked = scores.masked_fill(hidden, -torch.inf).masked_fill(hidden.all(-1, keepdim=True), 0)
    return masked.softmax(-1, dtype=wide).to(scores.dtype).masked_fill(hidden, 0)


def _hidden(scores: torch.Tensor, valid_lengths: torch.Tensor) -> torch.Tensor:
    """True where a key is not there, of as many axes as `scores`."""
    batch, n_queries, n_keys = scores.shape[0], scores.shape[-2], scores.shape[-1]
    if valid_lengths.shape not in ((batch,), (batch, n_queries)):
        raise ValueError(
            f"valid_lengths of shape {tuple(valid_lengths.shape)}; scores of shape {tuple(scores.shape)} need "
            f"({batch},) or ({batch}, {n_queries})"
        )
    between = [1] * (scores.dim() - 3)
    limits = valid_lengths.view(batch, *between, -1, 1)
    return torch.arange(n_keys, device=scores.device) >= limits
