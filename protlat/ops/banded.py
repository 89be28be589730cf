"""Banded attention with learned convolutions over the scores: time and memory linear in length.

Blocks of W queries stand against the W + 2 R keys around them, as in window attention. A convolution over the offset
j - i of one query is a convolution along the keys of its row, so the scores are convolved where the product leaves
them: laying them out as a band of 2 r + 1 columns first costs two more passes over memory than it saves.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from protlat.ops.offset_convolution import convolve_offsets
from protlat.ops.segments import Segments

Normalisation = Literal["none", "softmax", "rmsnorm"]
Activation = Literal["none", "gelu", "relu", "silu", "tanh"]
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu, "tanh": torch.tanh}
_RMS_EPS = 1e-6
# Smaller blocks would make the matrix products too small; larger ones compute more scores that are masked.
_LEAST_BLOCK = 32
# Tokens per slab of blocks: bounds the memory of the scores where no gradient is wanted.
_TOKENS_PER_SLAB = 4096
# Beyond this, masks are made again in every layer, as in window attention.
_MAX_TOKENS_WITH_KEPT_MASK = 65_536


@dataclass(frozen=True)
class BandSettings:
    """What banded attention does with its scores.

    Attributes
    ----------
    radius : int
        Greatest distance of a key from its query, at least 1.
    causal : bool
        Whether keys after the query are hidden.
    normalise : "none", "softmax" or "rmsnorm"
        softmax of the convolved scores; rmsnorm: a row of scores over its root mean square and over the root of the
        number of keys it sees.
    activation : str
        Applied between rounds: none, gelu, relu, silu or tanh.
    scale : bool
        Whether scores are divided by sqrt(D).
    remask_output : bool
        Whether what the last convolution moved out of the band is masked too.
    """

    radius: int
    causal: bool = False
    normalise: Normalisation = "softmax"
    activation: Activation = "none"
    scale: bool = True
    remask_output: bool = True

    def reach(self, n_taps: int) -> int:
        """Distance of the farthest key that can have a weight."""
        return self.radius if self.remask_output else self.radius + n_taps // 2


class _Masks(NamedTuple):
    """Masks of a slab of blocks, broadcast over heads: (n or 1, W, C); `count` (n or 1, W, 1)."""

    inner: torch.Tensor
    """1 inside the band, 0 elsewhere: before every convolution."""
    outer: torch.Tensor
    """After the last one: 0 and -inf for a softmax, else 1 and 0."""
    count: torch.Tensor
    """Keys that a query sees after the last convolution, float32 or wider."""


def banded_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, taps: torch.Tensor, segments: Segments, settings: BandSettings
) -> torch.Tensor:
    """Attention over |i - j| <= radius whose scores pass through rounds of mask and convolution.

    Parameters
    ----------
    q, k, v : torch.Tensor, shape (T, H, D)
    taps : torch.Tensor, shape (rounds, H or 1, 2 s + 1)
        Kernel of each round, per head or shared by all.
    segments : Segments
    settings : BandSettings

    Returns
    -------
    torch.Tensor, shape (T, H, D)

    Notes
    -----
    With B_{i,o} = q_i . k_{i+o} / sqrt(D) for |o| <= r inside i's sequence (o <= 0 when causal) and 0 elsewhere, one
    round is B'_{i,o} = sum over m of taps_m B_{i,o+m}. A convolution moves scores over the edge of the mask, so the
    mask stands before every convolution and after the last. Without an activation the rounds are one linear map of
    each query's scores. Time O(T r (D + rounds (2 s + 1)) H), memory O(T r H): no T x T matrix.
    """
    n_tokens, n_heads, head_dim = q.shape
    left = settings.reach(taps.shape[-1])
    right = 0 if settings.causal else left
    width = max(left, _LEAST_BLOCK)
    n_blocks = -(-n_tokens // width)
    tail = n_blocks * width - n_tokens
    if settings.scale:
        q = q * head_dim**-0.5
    # (H, N, W, D)
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, tail)).unflatten(0, (n_blocks, width)).permute(2, 0, 1, 3) for x in (q, k, v))
    slab = max(1, _TOKENS_PER_SLAB // width)
    # Split at once: the backward pass of a slice fills a tensor of the whole batch.
    q_slabs, k_slabs, v_slabs = (x.split(slab, 1) for x in (q, k, v))
    out = []
    for number, queries in enumerate(q_slabs):
        masks = _block_masks(segments, settings, taps, width, (left, right), number * slab, queries)
        keys, values = (_around(slabs, number, left, right) for slabs in (k_slabs, v_slabs))
        out.append(_attend(queries, keys, values, taps, masks, settings))
    whole = out[0] if len(out) == 1 else torch.cat(out, 1)
    return whole.permute(1, 2, 0, 3).reshape(n_blocks * width, n_heads, head_dim)[:n_tokens]


def banded_step(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    n_before: torch.Tensor,
    taps: torch.Tensor,
    settings: BandSettings,
) -> torch.Tensor:
    """One new token of each of S sequences, causal.

    Parameters
    ----------
    q : torch.Tensor, shape (S, H, D)
    keys, values : torch.Tensor, shape (S, R + 1, H, D)
        The token itself behind the R = `settings.reach` before it; rows before the sequence's start are not read.
    n_before : torch.Tensor, shape (S,), int64
        Tokens before the new one in its sequence.
    taps, settings
        As in `banded_attention`.

    Returns
    -------
    torch.Tensor, shape (S, H, D)
    """
    reach = keys.shape[1] - 1
    if settings.scale:
        q = q * q.shape[-1] ** -0.5
    offset = torch.arange(-reach, 1, device=q.device)
    there = (-offset <= n_before[:, None])[:, None]
    masks = _masks(there & (-offset <= settings.radius), there, settings, q.dtype)
    # Each sequence is a block of one query: (H, S, 1, D) against (H, S, R + 1, D)
    queries = q.transpose(0, 1).unsqueeze(2)
    keys, values = (x.permute(2, 0, 1, 3) for x in (keys, values))
    return _attend(queries, keys, values, taps, masks, settings).squeeze(2).transpose(0, 1)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, taps: torch.Tensor, masks: _Masks, settings: BandSettings
) -> torch.Tensor:
    """q (H, N, W, D), k and v (H, N, C, D) -> (H, N, W, D)."""
    shape = (*q.shape[:3], k.shape[2])
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(shape)
    for number, kernel in enumerate(taps):
        # By product, not by masked_fill, which is five times slower on CPU; in place where nobody keeps the scores.
        masked = scores * masks.inner if number else scores.mul_(masks.inner)
        scores = convolve_offsets(masked, kernel)
        if settings.activation != "none" and number < len(taps) - 1:
            scores = ACTIVATIONS[settings.activation](scores)
    weights = _normalised(scores, masks, settings.normalise)
    return torch.bmm(weights.flatten(0, 1), v).unflatten(0, shape[:2])


def _normalised(scores: torch.Tensor, masks: _Masks, normalise: Normalisation) -> torch.Tensor:
    if normalise == "softmax":
        return scores.add_(masks.outer).softmax(-1)
    scores = scores.mul_(masks.outer)
    if normalise == "none":
        return scores
    length = torch.linalg.vector_norm(scores, dim=-1, keepdim=True, dtype=masks.count.dtype)
    return scores * torch.rsqrt(length.square() + _RMS_EPS * masks.count).to(scores.dtype)


def _around(slabs: tuple[torch.Tensor, ...], number: int, left: int, right: int) -> torch.Tensor:
    """Every block of a slab with the `left` rows before it and the `right` rows after it: (H, N, W + left + right, D)."""
    here = slabs[number]
    before = slabs[number - 1][:, -1:] if number else torch.zeros_like(here[:, :1])
    parts = [torch.cat([before, here[:, :-1]], 1)[:, :, -left:], here]
    if right:
        after = slabs[number + 1][:, :1] if number + 1 < len(slabs) else torch.zeros_like(here[:, :1])
        parts.append(torch.cat([here[:, 1:], after], 1)[:, :, :right])
    return torch.cat(parts, 2)


def _block_masks(
    segments: Segments,
    settings: BandSettings,
    taps: torch.Tensor,
    width: int,
    reach: tuple[int, int],
    first: int,
    queries: torch.Tensor,
) -> _Masks:
    """Masks of the blocks of `queries`, of which the first is block `first` of the batch."""
    n_blocks, dtype = queries.shape[1], queries.dtype
    left, right = reach
    start, stop = first * width - left, (first + n_blocks) * width + right
    offset = torch.arange(-left, width + right, device=segments.device) - torch.arange(
        width, device=segments.device
    ).unsqueeze(1)

    def make(same: torch.Tensor) -> _Masks:
        allowed = same & (offset >= -left) & (offset <= right)
        return _masks(allowed & (offset.abs() <= settings.radius), allowed, settings, dtype)

    if _inside_one_sequence(segments, start, stop):
        # One mask serves all blocks well inside a sequence: a long one needs no T x C entries.
        everything = offset.new_ones(1, 1, 1, dtype=torch.bool)
        return segments.derive(("band", settings, taps.shape[-1], dtype), lambda: make(everything))

    def make_slab() -> _Masks:
        # Rows before the batch and rows behind it have numbers of their own; the latter see each other, so that no
        # row is empty.
        owner = F.pad(segments.ids[max(start, 0) : stop].int(), (max(-start, 0), 0), value=-2)
        owner = F.pad(owner, (0, stop - start - len(owner)), value=-1)
        keys = owner.unfold(0, left + width + right, width)
        return make(keys[:, None, :] == keys[:, left : left + width, None])

    if segments.n_tokens > _MAX_TOKENS_WITH_KEPT_MASK:
        return make_slab()
    return segments.derive(("band", settings, taps.shape[-1], dtype, first, n_blocks), make_slab)


def _masks(inner: torch.Tensor, outer: torch.Tensor, settings: BandSettings, dtype: torch.dtype) -> _Masks:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    count = outer.sum(-1, keepdim=True).to(wide)
    after = outer.to(dtype)
    if settings.normalise == "softmax":
        after = torch.zeros_like(after).masked_fill_(~outer, -torch.inf)
    return _Masks(inner.to(dtype), after, count)


def _inside_one_sequence(segments: Segments, start: int, stop: int) -> bool:
    ends = segments.derive("ends", lambda: list(accumulate(segments.lengths)))
    return start >= 0 and stop <= ends[-1] and bisect_right(ends, start) == bisect_right(ends, stop - 1)
