"""Linear attention over pixels, pixel by pixel."""

from __future__ import annotations

import torch


def image_linear_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, norm_queries: bool = True
) -> torch.Tensor:
    """Values read by each pixel of one image and one head.

    Parameters
    ----------
    q : torch.Tensor, shape (N, K)
    k : torch.Tensor, shape (M, K)
        Of the pixels, and of further keys behind them.
    v : torch.Tensor, shape (M, D)
    seen : torch.Tensor, shape (M,), bool
        Keys that are read.
    norm_queries : bool
        Softmax over the channels of each query.

    Returns
    -------
    torch.Tensor, shape (N, D)

    References
    ----------
    Shen et al. 2021, "Efficient attention", equation 5, with q and k scaled by K^(-1/4).
    """
    scale = k.shape[1] ** -0.25
    features = (q * scale).softmax(1) if norm_queries else q * scale
    keys = (k[seen] * scale).exp()
    return torch.einsum("nc,mc,md->nd", features, keys / keys.sum(0), v[seen])


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
    """Plain convolution of one image: x (C, H, W), weight (O, C, k, k) -> (O, H', W'); zero outside the image."""
    _, height, width = x.shape
    size = weight.shape[2]
    rows = range((height + 2 * padding - size) // stride + 1)
    columns = range((width + 2 * padding - size) // stride + 1)
    out = []
    for i in rows:
        for j in columns:
            total = bias
            for a in range(size):
                for b in range(size):
                    y, z = i * stride - padding + a, j * stride - padding + b
                    if 0 <= y < height and 0 <= z < width:
                        total = total + weight[:, :, a, b] @ x[:, y, z]
            out.append(total)
    return torch.stack(out, 1).view(-1, len(rows), len(columns))
