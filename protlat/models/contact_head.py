"""The contact head: residue vectors in, the distribution over distances of every pair out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import nn
from typing_extensions import Self

from protlat.config import Config
from protlat.nn.pair_block import ChannelNorm, Mixer, PairBlock
from protlat.nn.pair_features import PairFeatures, ResidueStage, separation_classes
from protlat.tasks.pairs import CONTACT_ANGSTROM, SEPARATION_STARTS


class ContactHeadConfig(Config):
    """Sizes of a contact head."""

    d_hidden: int = Field(128, ge=1)
    """Width of the layer over residues, before pairs are made."""
    taps: int = Field(5, ge=1)
    """Residues that its convolution along the chain spans; odd."""
    rank: int = Field(32, ge=1)
    """Channels of the product of two residues."""
    channels: int = Field(32, ge=1)
    """Channels of a pixel."""
    mixer: Mixer = "linear_attention"
    """What a block has before its convolution: linear_attention over all pixels, or convolution, for comparison."""
    heads: int = Field(2, ge=1)
    """Heads of the linear attention."""
    head_dim: int = Field(16, ge=1)
    """Channels of a key or value."""
    dilations: tuple[int, ...] = (1, 2, 4, 1)
    """One block per number: the dilation of its 3 x 3 convolution."""
    edges_angstrom: tuple[float, ...] = (4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0)
    """Borders of the classes of distance that are learned, ascending; 8, the contact distance, must be among them."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Share of residue channels set to zero in training."""

    @field_validator("dilations")
    @classmethod
    def _some_blocks(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("at least one block, dilations from 1")
        return value

    @field_validator("taps")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("must be odd, so that the convolution is centred")
        return value

    @model_validator(mode="after")
    def _edges_hold_the_contact(self) -> Self:
        if CONTACT_ANGSTROM not in self.edges_angstrom or list(self.edges_angstrom) != sorted(set(self.edges_angstrom)):
            raise ValueError(f"edges_angstrom must ascend and hold {CONTACT_ANGSTROM:g}, the contact distance")
        return self


class ResidueParts(NamedTuple):
    """Residues of some chains, end to end, ready to be combined.

    Attributes
    ----------
    vectors : tuple of torch.Tensor, shapes (T, R), (T, R), (T, C), (T, C)
        Of `ResidueStage`.
    numbers : torch.Tensor, shape (T,), int64
        Number of each along its chain.
    """

    vectors: tuple[torch.Tensor, ...]
    numbers: torch.Tensor


class Tiles(NamedTuple):
    """Rectangles of pair maps, all of one size.

    Attributes
    ----------
    rows : torch.Tensor, shape (B, H), int64
        Residue of each row, in the order of `ResidueParts`; -1: none.
    columns : torch.Tensor, shape (B, W), int64
    chains : torch.Tensor, shape (B,), int64
        Which map each tile is of: those of one map share its pooled state.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    chains: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """Pixels that count, (B, H, W): both residues are there, and the row's is not the later one."""
        rows, columns = self.rows[:, :, None], self.columns[:, None]
        return (rows >= 0) & (columns >= rows)


class ContactHead(nn.Module):
    """Predicts classes of distance for the pairs of a chain.

    The image is the half of the map in which the row's residue comes before the column's, so that the answer is the same
    for (i, j) and (j, i) by construction, at half the cost.

    Parameters
    ----------
    config : ContactHeadConfig
    d_input : int
        Width of residue vectors.
    """

    prior: torch.Tensor

    def __init__(self, config: ContactHeadConfig, d_input: int) -> None:
        super().__init__()
        self.config, self.d_input = config, d_input
        chan = config.channels
        self.residues = ResidueStage(d_input, config.d_hidden, config.rank, chan, config.taps, config.dropout)
        self.pairs = PairFeatures(config.rank, chan)
        self.blocks = nn.ModuleList(
            PairBlock(chan, config.mixer, config.heads, config.head_dim, dilation) for dilation in config.dilations
        )
        self.norm = ChannelNorm(chan)
        self.out = nn.Linear(chan, len(config.edges_angstrom) + 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        # Log frequency of each class of distance by class of separation: where training starts from.
        self.register_buffer("prior", torch.zeros(len(SEPARATION_STARTS), len(config.edges_angstrom) + 1))

    def read(self, vectors: Sequence[torch.Tensor], index: Sequence[np.ndarray]) -> ResidueParts:
        """Residues of chains, each by itself: vectors (L, E), numbers along the chain (L,)."""
        found = [self.residues(chain) for chain in vectors]
        numbers = torch.from_numpy(np.concatenate(index)).to(vectors[0].device)
        return ResidueParts(tuple(torch.cat(parts) for parts in zip(*found, strict=True)), numbers)

    def pixels(self, parts: ResidueParts, tiles: Tiles) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels before the first block (B, C, H, W), and the class of separation of each (B, H, W)."""
        rows, columns = tiles.rows.clamp_min(0), tiles.columns.clamp_min(0)
        classes = separation_classes(parts.numbers[columns][:, None] - parts.numbers[rows][:, :, None])
        a, b, c, d = parts.vectors
        pixels: torch.Tensor = self.pairs((a[rows], c[rows]), (b[columns], d[columns]), classes)
        return pixels, classes

    def answer(self, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Logits of the classes of distance, (B, K, H, W), from the pixels behind the last block."""
        learned = self.out(self.norm(x).permute(0, 2, 3, 1))
        return (learned + self.prior[classes].to(x.dtype)).permute(0, 3, 1, 2)

    def forward(self, parts: ResidueParts, tiles: Tiles) -> torch.Tensor:
        """Logits (B, K, H, W), each map's state pooled over those of its pixels that are in `tiles`."""
        x, classes = self.pixels(parts, tiles)
        mask, n_chains = tiles.mask, int(tiles.chains.max()) + 1
        for block in self.blocks:
            x = block(x, mask, lambda pooled: pooled.merged(tiles.chains, n_chains).state[tiles.chains])
        return self.answer(x, classes)

    def contact_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Log odds of a contact, (B, H, W), from logits of the classes of distance."""
        n_close = self.config.edges_angstrom.index(CONTACT_ANGSTROM) + 1
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return wide[:, :n_close].logsumexp(1) - wide[:, n_close:].logsumexp(1)

    @property
    def reach(self) -> int:
        """Pixels to each side whose input acts on an output pixel, but for the pooled state."""
        return sum(cast(PairBlock, block).reach for block in self.blocks)
