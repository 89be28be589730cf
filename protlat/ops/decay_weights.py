"""Scores inside a chunk times the decay between their rows, a few chunks at a time so that they stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# Entries per slab: 1 MB of float32.
_AT_ONCE = 1 << 18


def weighted(scores: torch.Tensor, after: torch.Tensor, before: torch.Tensor, causal: bool, own: bool) -> torch.Tensor:
    """Scores times exp(after_i - after_j) for j <= i, and times exp(before_j - before_i) for j > i.

    Parameters
    ----------
    scores : torch.Tensor, shape (H, N, C, C)
    after, before : torch.Tensor, shape (H, N, C) or (H, 1, C), float32 or float64
        Not increasing along C; with 1 in place of N, all chunks have the same weights.
    causal : bool
        Zero for j > i; `before` is not read.
    own : bool
        False: zero for j = i.

    Returns
    -------
    torch.Tensor, shape (H, N, C, C), dtype of scores

    Notes
    -----
    No exponent is positive, and masks act before the exponential. Weights are computed again in the backward pass.
    """
    return _Weighted.apply(scores, after, before, causal, own)


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: torch.Tensor, after: torch.Tensor, before: torch.Tensor, causal: bool, own: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(scores, after, before)
        ctx.causal, ctx.own = causal, own
        out = torch.empty_like(scores)
        for part, weights in _slabs(scores, after, before, causal, own):
            torch.mul(scores[part], weights.to(scores.dtype), out=out[part])
        return out

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None, None]:
        scores, after, before = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1]
        d_scores = torch.empty_like(scores)
        d_after, d_before = (torch.zeros_like(x) for x in (after, before)) if wanted else (None, None)
        for part, weights in _slabs(scores, after, before, ctx.causal, ctx.own):
            torch.mul(gradient[part], weights.to(scores.dtype), out=d_scores[part])
            if d_after is None or d_before is None:
                continue
            # Derivative by the exponent. On the diagonal it cancels.
            slope = d_scores[part].to(after.dtype) * scores[part]
            if after.shape[1] == 1:
                slope = slope.sum(0, keepdim=True)
            place = part if after.shape[1] > 1 else (part[0], slice(0, 1))
            lower = slope.tril()
            rows, columns = lower.sum(-1), lower.sum(-2)
            d_after[place] += rows - columns
            if not ctx.causal:
                d_before[place] += (slope.sum(-2) - columns) - (slope.sum(-1) - rows)
        return d_scores, d_after, d_before, None, None


def _slabs(
    scores: torch.Tensor, after: torch.Tensor, before: torch.Tensor, causal: bool, own: bool
) -> Iterator[tuple[tuple[int, slice], torch.Tensor]]:
    """Parts (head, chunks) of the scores, each with its weights (n or 1, C, C)."""
    n_heads, n_chunks, size, _ = scores.shape
    at_once = max(_AT_ONCE // size**2, 1) if scores.device.type == "cpu" else n_chunks
    here = torch.ones(size, size, dtype=torch.bool, device=scores.device)
    hidden = ~here.tril(0 if own else -1) if causal else here.tril() & here.triu() & (not own)
    for head in range(n_heads):
        weights = _weights(after[head], before[head], causal, hidden) if after.shape[1] == 1 else None
        for start in range(0, n_chunks, at_once):
            part = slice(start, min(start + at_once, n_chunks))
            mine = _weights(after[head, part], before[head, part], causal, hidden) if weights is None else weights
            yield (head, part), mine


def _weights(after: torch.Tensor, before: torch.Tensor, causal: bool, hidden: torch.Tensor) -> torch.Tensor:
    """(n, C) -> (n, C, C)."""
    exponent = after[:, :, None] - after[:, None, :]
    if not causal:
        # Each is positive where the other is meant, and zero on the diagonal.
        exponent = torch.minimum(exponent, before[:, None, :] - before[:, :, None], out=exponent)
    return exponent.masked_fill_(hidden, -torch.inf).exp_()
