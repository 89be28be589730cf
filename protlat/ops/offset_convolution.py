"""A short convolution along the last axis of a tall matrix of scores, as narrow matrix products."""

from __future__ import annotations

from typing import Any

import torch

# Columns of one product: wide enough for the matrix unit, narrow enough that most of the Toeplitz matrix is not zero.
_TILE = 48


def convolve_offsets(scores: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """out[..., c] = sum over m in [-s, s] of taps[h, s + m] * scores[h, ..., c + m], zero outside.

    Parameters
    ----------
    scores : torch.Tensor, shape (H, ..., C), contiguous
    taps : torch.Tensor, shape (H, 2 s + 1), or (1, 2 s + 1) shared by the heads

    Returns
    -------
    torch.Tensor, shape (H, ..., C)

    Notes
    -----
    A tile of columns is the product of the columns it depends on with a small Toeplitz matrix, C (48 + 2 s) products a
    row. With 5 taps in float32 on CPU this takes about as long as shifted sums; in bfloat16, where matrix products are
    cheap, half as long. ``conv1d`` takes two to four times as long.
    """
    flat = scores.reshape(len(taps), -1, scores.shape[-1])
    out = _OffsetConvolution.apply(flat, taps.to(scores.dtype))
    return out.view(scores.shape)


class _OffsetConvolution(torch.autograd.Function):
    """Gradients are the same products: with the kernel turned round, and of the scores with the gradient."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(scores, taps)
        return _convolve(scores, taps)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        scores, taps = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        to_scores = _convolve(gradient, taps.flip(-1)) if ctx.needs_input_grad[0] else None
        to_taps = _tap_gradient(scores, gradient, taps) if ctx.needs_input_grad[1] else None
        return to_scores, to_taps


def _tiles(n_columns: int, half: int) -> list[tuple[slice, slice]]:
    """Output columns of each tile, and the input columns they depend on."""
    # Of one width, or nearly: a narrow last tile costs as much as a whole one.
    width = -(-n_columns // -(-n_columns // max(_TILE, 2 * half)))
    starts = range(0, n_columns, width)
    ends = [min(start + width, n_columns) for start in starts]
    return [(slice(a, b), slice(max(a - half, 0), min(b + half, n_columns))) for a, b in zip(starts, ends, strict=True)]


def _taps_between(n_columns: int, half: int, device: torch.device) -> torch.Tensor:
    """Tap that leads from input column (row) to output column; 2 s + 1 where none does. (C, C), int64."""
    column = torch.arange(n_columns, device=device)
    tap = column[:, None] - column[None, :] + half
    return tap.masked_fill_((tap < 0) | (tap > 2 * half), 2 * half + 1)


def _convolve(scores: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """scores (H, R, C), taps (H, K)."""
    n_columns, half = scores.shape[-1], taps.shape[-1] // 2
    padded = torch.nn.functional.pad(taps, (0, 1))
    toeplitz = padded[:, _taps_between(n_columns, half, taps.device)]
    out = [torch.bmm(scores[:, :, used], toeplitz[:, used, made]) for made, used in _tiles(n_columns, half)]
    return out[0] if len(out) == 1 else torch.cat(out, -1)


def _tap_gradient(scores: torch.Tensor, gradient: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """(H, K): for every tap, the scores it moved times the gradient where they went, summed in float32 at least."""
    n_columns, n_taps = scores.shape[-1], taps.shape[-1]
    tap = _taps_between(n_columns, n_taps // 2, taps.device)
    wide = torch.float64 if taps.dtype == torch.float64 else torch.float32
    total = taps.new_zeros(len(taps), n_taps + 1, dtype=wide)
    for made, used in _tiles(n_columns, n_taps // 2):
        product = torch.bmm(scores[:, :, used].transpose(1, 2), gradient[:, :, made])
        total.index_add_(1, tap[used, made].flatten(), product.flatten(1).to(wide))
    return total[:, :n_taps].to(taps.dtype)
