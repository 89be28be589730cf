"""What normalised attention divides by."""

from __future__ import annotations

import torch


def least_weight(dtype: torch.dtype) -> float:
    """Sums of weights up to this count as none: the quotient's gradient, one over them, would overflow."""
    return 64 * torch.finfo(dtype).tiny


def divisor(weight: torch.Tensor) -> torch.Tensor:
    """Sums of weights, and 1 where nothing was seen: the value is zero there, and must not become 0 / 0.

    Divide by the result: the gradient of a product with its inverse takes the square of that inverse.
    """
    return torch.where(weight > least_weight(weight.dtype), weight, 1)
