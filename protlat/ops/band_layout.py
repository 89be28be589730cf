"""Between blocks of scores and the band inside them: row i of a block keeps its columns i to i + B - 1."""

from __future__ import annotations

from typing import Any

import torch


def to_band(blocks: torch.Tensor) -> torch.Tensor:
    """The band of every block: (..., W, C) -> (..., W, C - W + 1), row i from column i on."""
    return _ToBand.apply(blocks)


def from_band(band: torch.Tensor) -> torch.Tensor:
    """Transpose of `to_band`: (..., W, B) -> (..., W, W + B - 1), zero outside the band."""
    return _FromBand.apply(band)


def _take(blocks: torch.Tensor) -> torch.Tensor:
    return _view(blocks).contiguous()


def _put(band: torch.Tensor) -> torch.Tensor:
    height, width = band.shape[-2:]
    blocks = band.new_zeros(*band.shape[:-1], height + width - 1)
    _view(blocks).copy_(band)
    return blocks


def _view(blocks: torch.Tensor) -> torch.Tensor:
    """The band as a view of contiguous blocks: a step down a column is a step along the row too."""
    height, n_columns = blocks.shape[-2:]
    blocks = blocks.contiguous()
    strides = (*blocks.stride()[:-2], n_columns + 1, 1)
    return blocks.as_strided((*blocks.shape[:-1], n_columns - height + 1), strides)


class _ToBand(torch.autograd.Function):
    """A function of its own: the gradient of a strided view takes a slow general way."""

    @staticmethod
    def forward(ctx: Any, blocks: torch.Tensor) -> torch.Tensor:
        return _take(blocks)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return _put(gradients[0])


class _FromBand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, band: torch.Tensor) -> torch.Tensor:
        return _put(band)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return _take(gradients[0])
