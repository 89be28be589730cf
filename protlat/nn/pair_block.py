"""A block over the pixels of a pair map: linear attention over all of them, then a convolution over neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from protlat.nn.image_attention import ImageLinearAttention, PooledPixels

Mixer = Literal["linear_attention", "convolution"]
# Turns what was read of some tiles into the state that each tile's pixels read, (B, H K, H D).
StateOf = Callable[[PooledPixels], torch.Tensor]


class ChannelNorm(nn.Module):
    """Layer norm over the channels of every pixel of (B, C, H, W), so that a tile's numbers are those of the whole."""

    def __init__(self, chan: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(chan))
        self.bias = nn.Parameter(torch.zeros(chan))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) -> (B, C, H, W), fastest in the memory format channels_last."""
        rows = F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias)
        return rows.permute(0, 3, 1, 2)


class PairBlock(nn.Module):
    """x + mixer(norm(x)), then x + convolution(norm(x)), in an image some of whose pixels do not count.

    Parameters
    ----------
    chan : int
        Channels.
    mixer : str
        "linear_attention": `ImageLinearAttention`, which reads a state pooled over all pixels; "convolution": a 3 x 3
        convolution in its place, for comparison.
    heads, head_dim : int
        Of the attention; keys and values have `head_dim` channels a head.
    dilation : int
        Of the 3 x 3 convolution behind the mixer.

    Notes
    -----
    For N pixels of C channels and H heads of D: time O(N (9 C^2 + C H D + H D^2)), memory O(N (C + H D)).
    """

    def __init__(self, chan: int, mixer: Mixer, heads: int, head_dim: int, dilation: int) -> None:
        super().__init__()
        self.attends = mixer == "linear_attention"
        self.mixer_norm, self.conv_norm = ChannelNorm(chan), ChannelNorm(chan)
        if mixer == "linear_attention":
            self.mixer: nn.Module = ImageLinearAttention(chan, key_dim=head_dim, value_dim=head_dim, heads=heads)
        else:
            self.mixer = nn.Conv2d(chan, chan, 3, padding=1)
        self.conv = nn.Conv2d(chan, chan, 3, padding=dilation, dilation=dilation)
        self.out = nn.Linear(chan, chan)
        # A new block is the identity, but for what the mixer adds.
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.reach = dilation + (0 if self.attends else 1)
        """Pixels to each side that an output pixel reads directly."""

    def pool(self, x: torch.Tensor, mask: torch.Tensor) -> PooledPixels:
        """What the mixer reads of the pixels of `mask`."""
        assert isinstance(self.mixer, ImageLinearAttention)
        return self.mixer.pool(self.mixer_norm(x), mask)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, state: torch.Tensor | StateOf | None = None) -> torch.Tensor:
        """Mix.

        Parameters
        ----------
        x : torch.Tensor, shape (B, C, H, W)
        mask : torch.Tensor, shape (B, H, W), bool
            Pixels that count; the output means nothing at the others.
        state : torch.Tensor of shape (B, H K, H D), callable or None
            What the pixels of each image read; a function of what `pool` finds here; None: the state of each image by itself.

        Returns
        -------
        torch.Tensor, shape (B, C, H, W)
        """
        counts = mask[:, None].to(x.dtype)
        normed = self.mixer_norm(x)
        if isinstance(self.mixer, ImageLinearAttention):
            if not isinstance(state, torch.Tensor):
                pooled = self.mixer.pool(normed, mask)
                state = pooled.state if state is None else state(pooled)
            x = x + self.mixer.read(normed, state)
        else:
            x = x + self.mixer(normed * counts)
        hidden = F.gelu(self.conv(self.conv_norm(x) * counts))
        return x + self.out(hidden.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
