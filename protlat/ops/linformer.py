"""Low-rank attention: keys and values of a sequence are projected along positions to a fixed number of rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from protlat.ops.by_sequence import sequence_batches
from protlat.ops.segments import Segments

# Queries at once without a graph: bounds the weights, K values a query and head.
_ROWS_AT_ONCE = 8_192


def project_positions(x: torch.Tensor, matrix: torch.Tensor, segments: Segments) -> torch.Tensor:
    """matrix[:n]^T x of every sequence, n its length.

    Parameters
    ----------
    x : torch.Tensor, shape (T, H, D)
    matrix : torch.Tensor, shape (L, K)
        L at least the longest sequence.
    segments : Segments

    Returns
    -------
    torch.Tensor, shape (S, K, H, D), dtype of x

    Notes
    -----
    Time O(T K H D). Products add up in float32 at least.
    """
    batches = sequence_batches(segments, x.dtype)
    longest = max(length for _, length in batches.sizes)
    # Rounded lengths may exceed L; their added rows are zero.
    rows = F.pad(matrix, (0, 0, 0, longest - len(matrix))) if longest > len(matrix) else matrix
    rows = rows.to(x.dtype)
    out = []
    for part in batches.split(x.flatten(1), zero_added=True):
        n, length, _ = part.shape
        # (K, L) @ (n, L, H D)
        across = rows[:length].T
        out.append((across @ part[0])[None] if n == 1 else torch.bmm(across.expand(n, -1, -1), part))
    joined = out[0] if len(out) == 1 else torch.cat(out)
    return joined.unflatten(-1, x.shape[1:])


def read_projected(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, segments: Segments, dropout: float = 0.0
) -> torch.Tensor:
    """softmax(q keys^T / sqrt(D)) values, each sequence on rows of its own.

    Parameters
    ----------
    q : torch.Tensor, shape (T, H, D)
    keys, values : torch.Tensor, shape (S, K, H, D)
    segments : Segments
    dropout : float
        Share of weights dropped.

    Returns
    -------
    torch.Tensor, shape (T, H, D)

    Notes
    -----
    Time O(T K H D).
    """
    batches = sequence_batches(segments, q.dtype)
    counts = batches.counts
    # Measured on CPU: two products are faster than the fused kernel in bfloat16, and two to three times slower in float32.
    attend = _products if q.device.type == "cpu" and q.dtype == torch.bfloat16 else _fused
    out = []
    for queries, k, v in zip(batches.split(q), keys.split(counts), values.split(counts), strict=True):
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        rows = [queries] if torch.is_grad_enabled() else queries.split(_ROWS_AT_ONCE, dim=1)
        parts = [attend(part.transpose(1, 2), k, v, dropout).transpose(1, 2) for part in rows]
        out.append(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
    return batches.join(out)


def _fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)


def _products(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> torch.Tensor:
    # The scale on the keys, of which there are fewer than queries.
    weights = torch.matmul(q, (k * q.shape[-1] ** -0.5).transpose(2, 3)).softmax(-1)
    return torch.matmul(F.dropout(weights, dropout) if dropout else weights, v)
