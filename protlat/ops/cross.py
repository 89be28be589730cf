"""Attention from the sequences of one packed batch to those of another: sequence s reads context s only."""

from __future__ import annotations

from itertools import groupby

import torch
import torch.nn.functional as F

from protlat.ops.by_sequence import sequence_batches
from protlat.ops.segments import Segments


def pool_context(k: torch.Tensor, v: torch.Tensor, segments: Segments) -> torch.Tensor:
    """(softmax over positions of k)^T v of every sequence of a context.

    Parameters
    ----------
    k : torch.Tensor, shape (T, H, M)
    v : torch.Tensor, shape (T, H, D)
    segments : Segments

    Returns
    -------
    torch.Tensor, shape (S, H, M, D), dtype of v

    Notes
    -----
    Time O(T H M D). The softmax and the products add up in float32 at least.

    References
    ----------
    Shen et al. 2021, "Efficient attention: attention with linear complexities", equation 5.
    """
    batches = sequence_batches(segments, v.dtype)
    out = []
    # The softmax over true rows only: an added row would take its share.
    features = _softmax_over_positions(k, segments)
    for keys, values in zip(batches.split(features, zero_added=True), batches.split(v), strict=True):
        # (n, H, M, L) @ (n, H, L, D)
        out.append(torch.matmul(keys.permute(0, 2, 3, 1), values.transpose(1, 2)))
    return out[0] if len(out) == 1 else torch.cat(out)


def read_pooled(features_q: torch.Tensor, pooled: torch.Tensor, segments: Segments) -> torch.Tensor:
    """features_q_i pooled_s for every token i of sequence s: (T, H, M) and (S, H, M, D) -> (T, H, D)."""
    batches = sequence_batches(segments, pooled.dtype)
    parts = zip(batches.split(features_q), pooled.split(batches.counts), strict=True)
    return batches.join([torch.matmul(q.transpose(1, 2), state).transpose(1, 2) for q, state in parts])


def cross_softmax(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    context_segments: Segments,
    dropout: float = 0.0,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v with the keys and values of the sequence's own context.

    Parameters
    ----------
    q : torch.Tensor, shape (T, H, D)
    k, v : torch.Tensor, shape (T', H, D)
    segments, context_segments : Segments
        Of q, and of k and v; as many sequences in both.
    dropout : float
        Share of weights dropped.

    Returns
    -------
    torch.Tensor, shape (T, H, D)

    References
    ----------
    Vaswani et al. 2017, section 3.2.3.
    """
    # Neighbours that agree in both lengths, as (how many, length, context length)
    pairs = zip(segments.lengths, context_segments.lengths, strict=True)
    groups = [(len(list(same)), *pair) for pair, same in groupby(pairs)]
    query_parts = q.split([n * length for n, length, _ in groups])
    key_parts, value_parts = (x.split([n * length for n, _, length in groups]) for x in (k, v))
    out = []
    for (n, _, _), *parts in zip(groups, query_parts, key_parts, value_parts, strict=True):
        # (n L, H, D) -> (n, H, L, D)
        queries, keys, values = (part.unflatten(0, (n, -1)).transpose(1, 2) for part in parts)
        read = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout)
        out.append(read.transpose(1, 2).flatten(0, 1))
    return out[0] if len(out) == 1 else torch.cat(out)


def _softmax_over_positions(k: torch.Tensor, segments: Segments) -> torch.Tensor:
    runs = segments.runs
    parts = k.split([n * length for n, length in runs])
    out = [part.unflatten(0, run).softmax(1).flatten(0, 1) for part, run in zip(parts, runs, strict=True)]
    return out[0] if len(out) == 1 else torch.cat(out)
