"""Nadaraya-Watson kernel regression: attention whose scores are squared distances."""

from __future__ import annotations

import torch
from torch import nn

# Distances of one slab of queries: bounds the memory for many queries and references.
_NUMBERS_AT_ONCE = 1 << 24


class KernelRegression(nn.Module):
    """f(x) = sum over i of softmax_i(-w^2 |x - x_i|^2 / 2) y_i.

    Parameters
    ----------
    width : float
        w, the inverse of the Gaussian kernel's bandwidth; the start when it is learned.
    learned : bool
        Whether w is a parameter.

    Notes
    -----
    Queries pass in slabs, so that memory is O(slab x references). For unit vectors |x - y|^2 / 2 = 1 - cos(x, y).

    References
    ----------
    Nadaraya 1964; Watson 1964.

    Examples
    --------
    >>> x = torch.linspace(0, 1, 5)
    >>> KernelRegression(width=50.0)(x, x, x**2)
    tensor([0.0000, 0.0625, 0.2500, 0.5625, 1.0000])
    """

    def __init__(self, width: float = 1.0, learned: bool = False) -> None:
        super().__init__()
        start = torch.tensor(float(width))
        self.width: torch.Tensor
        if learned:
            self.width = nn.Parameter(start)
        else:
            self.register_buffer("width", start)

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Average of the values, weighted by the nearness of their keys.

        Parameters
        ----------
        queries : torch.Tensor, shape (Q, D) or (Q,)
        keys : torch.Tensor, shape (K, D) or (K,)
        values : torch.Tensor, shape (K, C) or (K,)

        Returns
        -------
        torch.Tensor, shape (Q, C) or (Q,)
        """
        return self._average(queries, keys, values)

    def leave_one_out(self, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Prediction for every key from all others.

        Parameters
        ----------
        keys, values
            As in `forward`; at least two.
        rows : torch.Tensor, shape (R,), int64, or None
            Which keys to predict; None: all.

        Returns
        -------
        torch.Tensor, shape (R, C) or (R,)
        """
        if len(keys) < 2:
            raise ValueError("leaving one out needs at least two keys")
        rows = torch.arange(len(keys), device=keys.device) if rows is None else rows
        return self._average(keys[rows], keys, values, without=rows)

    def _average(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, without: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`without` (Q,): a key that each query does not see."""
        flat = values.dim() == 1
        queries, keys, values = (x[:, None] if x.dim() == 1 else x for x in (queries, keys, values))
        at_once = max(1, _NUMBERS_AT_ONCE // len(keys))
        out, first = [], 0
        for part in queries.split(at_once):
            scores = -0.5 * self.width.square() * squared_distances(part, keys)
            if without is not None:
                row = torch.arange(len(part), device=part.device)
                hidden = without[first : first + len(part)]
                scores = scores.index_put((row, hidden), scores.new_tensor(-torch.inf))
            out.append(scores.softmax(-1) @ values)
            first += len(part)
        whole = out[0] if len(out) == 1 else torch.cat(out)
        return whole[:, 0] if flat else whole


def squared_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """|a_i - b_j|^2, (Q, D) and (K, D) -> (Q, K), by one matrix product around the mean of b.

    The offset common to all vectors, large in embeddings, would cancel badly in |a|^2 + |b|^2 - 2 a.b; taking the mean
    away first leaves an error of the order of the spread's rounding.
    """
    middle = b.mean(0)
    a, b = a - middle, b - middle
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min(0)
