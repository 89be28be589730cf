"""Banded attention with learned convolutions over the scores: time and memory linear in length.

Blocks of W queries stand against the W + 2 R keys around them, as in window attention. The 2 R + 1 scores of each query
are then laid out as a band, so that the end of a row is the edge of the mask, and only queries near an end of their
sequence need a mask beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

from protlat.ops.band_layout import from_band, to_band
from protlat.ops.offset_convolution import convolve_offsets
from protlat.ops.segments import Segments

Normalisation = Literal["none", "softmax", "rmsnorm"]
Activation = Literal["none", "gelu", "relu", "silu", "tanh"]
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
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
    """Masks of some queries, broadcast over heads: (n or 1, W or 1, B); None: nothing to hide."""

    inner: torch.Tensor | None
    """Before every convolution: 1 inside the radius and the sequence, 0 elsewhere."""
    outer: torch.Tensor | None
    """After the last one: 0 and -inf for a softmax, else 1 and 0."""
    n_seen: torch.Tensor
    """Keys that a query sees after the last convolution, (..., 1), float32 or wider."""


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
        masks = _block_masks(segments, settings, (left, right), width, number * slab, queries)
        keys, values = (_around(slabs, number, left, right).flatten(0, 1) for slabs in (k_slabs, v_slabs))
        scores = torch.bmm(queries.flatten(0, 1), keys.transpose(1, 2)).unflatten(0, queries.shape[:2])
        weights = from_band(_weights(to_band(scores), taps, masks, settings))
        out.append(torch.bmm(weights.flatten(0, 1), values).unflatten(0, queries.shape[:2]))
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
    scores = torch.einsum("shd,sjhd->hsj", q, keys).unsqueeze(2)
    weights = _weights(scores, taps, masks, settings).squeeze(2)
    return torch.einsum("hsj,sjhd->shd", weights, values)


def _weights(scores: torch.Tensor, taps: torch.Tensor, masks: _Masks, settings: BandSettings) -> torch.Tensor:
    """Rounds of mask and convolution, then the normalisation: scores (H, N, W, B), which may be overwritten."""
    for number, kernel in enumerate(taps):
        if masks.inner is not None:
            # By product, not by masked_fill, which is five times slower on CPU; in place where nobody keeps the scores.
            scores = scores * masks.inner if number else scores.mul_(masks.inner)
        scores = convolve_offsets(scores, kernel)
        if settings.activation != "none" and number < len(taps) - 1:
            scores = ACTIVATIONS[settings.activation](scores)
    if settings.normalise == "softmax":
        return (scores if masks.outer is None else scores.add_(masks.outer)).softmax(-1)
    scores = scores if masks.outer is None else scores.mul_(masks.outer)
    if settings.normalise == "none":
        return scores
    length = torch.linalg.vector_norm(scores, dim=-1, keepdim=True, dtype=masks.n_seen.dtype)
    return scores * torch.rsqrt(length.square() + _RMS_EPS * masks.n_seen).to(scores.dtype)


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
    segments: Segments, settings: BandSettings, reach: tuple[int, int], width: int, first: int, queries: torch.Tensor
) -> _Masks:
    """Masks of the blocks of `queries` (H, n, W, D), of which the first is block `first` of the batch."""
    n_blocks, dtype = queries.shape[1], queries.dtype
    left, right = reach
    start, stop = first * width, (first + n_blocks) * width
    offset = torch.arange(-left, right + 1, device=segments.device)
    inner = offset.abs() <= settings.radius

    if _inside_one_sequence(segments, start - left, stop + right):
        everything = torch.ones_like(inner)
        return segments.derive(("banded", settings, reach, dtype), lambda: _masks(inner, everything, settings, dtype))

    def make() -> _Masks:
        rows = segments.rows[start:stop]
        last = torch.tensor(segments.lengths, device=segments.device)[segments.ids[start:stop]] - 1
        # Rows behind the batch see themselves, so that no row is empty.
        before, after = (F.pad(x, (0, stop - start - len(x))).view(-1, width, 1) for x in (rows, last - rows))
        there = (offset >= -before) & (offset <= after)
        return _masks(there & inner, there, settings, dtype)

    if segments.n_tokens > _MAX_TOKENS_WITH_KEPT_MASK:
        return make()
    return segments.derive(("banded", settings, reach, dtype, first, n_blocks), make)


def _masks(inner: torch.Tensor, outer: torch.Tensor, settings: BandSettings, dtype: torch.dtype) -> _Masks:
    """`outer` is all True where no query is near an end of its sequence; masks that hide nothing are left out."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    count = outer.sum(-1, keepdim=True).to(wide)
    inside = outer.dim() == 1
    after = outer.to(dtype)
    if settings.normalise == "softmax":
        after = torch.zeros_like(after).masked_fill_(~outer, -torch.inf)
    return _Masks(None if inside and settings.remask_output else inner.to(dtype), None if inside else after, count)


def _inside_one_sequence(segments: Segments, start: int, stop: int) -> bool:
    ends = segments.derive("ends", lambda: list(accumulate(segments.lengths)))
    return start >= 0 and stop <= ends[-1] and bisect_right(ends, start) == bisect_right(ends, stop - 1)
