"""From residue vectors to the pixels of a pair map: low-rank products and the separation along the chain."""

from __future__ import annotations

import torch
from torch import nn

from protlat.tasks.pairs import SEPARATION_STARTS


def separation_classes(separation: torch.Tensor) -> torch.Tensor:
    """Class of each separation, int64 of its shape; negative ones count as 0."""
    edges = torch.tensor(SEPARATION_STARTS[1:], device=separation.device)
    return torch.bucketize(separation, edges, right=True)


class ResidueStage(nn.Module):
    """Residue vectors in, the four vectors out of which pixels are made.

    A convolution over neighbours along the chain, so that inputs without context (one-hot) have some too.

    Parameters
    ----------
    d_input : int
        Width of the residue vectors.
    d_hidden : int
    rank : int
        Channels of the products.
    chan : int
        Channels of a pixel.
    taps : int
        Residues that the convolution spans, an odd number.
    dropout : float
        Share of inputs and hidden channels set to zero in training.
    """

    mean: torch.Tensor
    rate: torch.Tensor

    def __init__(self, d_input: int, d_hidden: int, rank: int, chan: int, taps: int, dropout: float) -> None:
        super().__init__()
        self.sizes = [rank, rank, chan, chan]
        # Mean and reciprocal spread of every input channel over the training set: `set_input`.
        self.register_buffer("mean", torch.zeros(d_input))
        self.register_buffer("rate", torch.ones(d_input))
        self.dropout = nn.Dropout(dropout)
        self.enter = nn.Linear(d_input, d_hidden)
        self.conv = nn.Conv1d(d_hidden, d_hidden, taps, padding=taps // 2)
        self.leave = nn.Linear(d_hidden, sum(self.sizes))

    def set_input(self, mean: torch.Tensor, spread: torch.Tensor) -> None:
        """Tell mean and spread of the input channels, (E,) each; a channel without spread is left as it is."""
        self.mean.copy_(mean)
        self.rate.copy_(torch.where(spread > 0, 1 / spread, torch.ones_like(spread)))

    def forward(self, vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(L, E) -> factors of the earlier and of the later residue (L, R), and their terms (L, C)."""
        x = self.enter(self.dropout((vectors.to(self.mean.dtype) - self.mean) * self.rate))
        x = x + torch.nn.functional.gelu(self.conv(x.T[None])[0].T)
        return self.leave(self.dropout(x)).split(self.sizes, dim=1)


class PairFeatures(nn.Module):
    """Pixel (i, j) = W (a_i * b_j) + c_i + d_j + s(separation), for i the earlier residue.

    Parameters
    ----------
    rank, chan : int
    """

    def __init__(self, rank: int, chan: int) -> None:
        super().__init__()
        self.product = nn.Linear(rank, chan)
        self.separation = nn.Embedding(len(SEPARATION_STARTS), chan)

    def forward(
        self,
        earlier: tuple[torch.Tensor, torch.Tensor],
        later: tuple[torch.Tensor, torch.Tensor],
        classes: torch.Tensor,
    ) -> torch.Tensor:
        """Pixels of tiles.

        Parameters
        ----------
        earlier : tuple of torch.Tensor, shapes (B, H, R) and (B, H, C)
            Factor and term of the residue of each row.
        later : tuple of torch.Tensor, shapes (B, W, R) and (B, W, C)
            The same of each column.
        classes : torch.Tensor, shape (B, H, W), int64
            Of `separation_classes`.

        Returns
        -------
        torch.Tensor, shape (B, C, H, W), in the memory format channels_last

        Notes
        -----
        sum_r W_cr a_ir b_jr is a matrix product of b_j with (a_i W_c): no (H, W, R) array is made.
        """
        (a, c), (b, d) = earlier, later
        # (B, 1, W, R) @ (B, H, R, C) -> (B, H, W, C)
        scaled = a[..., None] * self.product.weight.T
        pixels = b[:, None] @ scaled + self.separation(classes)
        pixels = pixels + (c + self.product.bias)[:, :, None] + d[:, None]
        return pixels.permute(0, 3, 1, 2)
