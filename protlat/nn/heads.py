"""Heads: from the vectors of residues to labels, by residue or by sequence."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import nn

from protlat.config import Config
from protlat.nn.classic.additive import AttentionPooling
from protlat.ops.pooled import segment_mean
from protlat.ops.segments import Segments

Pool = Literal["mean", "attention"]
_ROWS_AT_ONCE = 16_384


class _HeadConfig(Config):
    dropout: float = Field(0.2, ge=0, lt=1)
    """Share dropped of what enters the read-out and of every hidden layer."""


class LinearHeadConfig(_HeadConfig):
    """One linear layer."""

    kind: Literal["linear"] = "linear"
    pool: Pool = "mean"
    """How a sequence's residues become one vector; no meaning for labels of residues."""


class MlpHeadConfig(_HeadConfig):
    """Hidden layers with GELU, then a linear one."""

    kind: Literal["mlp"] = "mlp"
    pool: Pool = "mean"
    """How a sequence's residues become one vector; no meaning for labels of residues."""
    hidden: int = Field(128, ge=1)
    """Width of the hidden layers."""
    n_hidden: int = Field(1, ge=1)
    """Hidden layers."""


class CnnHeadConfig(_HeadConfig):
    """Convolutions along the residues with GELU, then a linear layer."""

    kind: Literal["cnn"] = "cnn"
    pool: Pool = "attention"
    """How a sequence's residues become one vector after the convolutions; no meaning for labels of residues."""
    width: int = Field(96, ge=1)
    """Channels of the convolutions."""
    kernel: int = Field(7, ge=1)
    """Residues that a convolution sees, an odd number."""
    n_layers: int = Field(2, ge=1)
    """Convolutions one after the other; from the second on they add to their input."""

    @field_validator("kernel")
    @classmethod
    def _odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError("the kernel must be odd, so that it is centred on the residue; use 5, 7 or 9")
        return kernel


class AttentionHeadConfig(_HeadConfig):
    """Additive-attention pooling over the residues, a hidden layer, a linear one: for labels of sequences."""

    kind: Literal["attention"] = "attention"
    hidden: int = Field(128, ge=1)
    """Width of the pooling's and of the read-out's hidden layer."""


AnyHead = Annotated[LinearHeadConfig | MlpHeadConfig | CnnHeadConfig | AttentionHeadConfig, Field(discriminator="kind")]
HEAD_KINDS = ("linear", "mlp", "cnn", "attention")


def needs_residues(config: AnyHead, per_residue: bool) -> bool:
    """Whether a head reads residues; if not, the mean over the sequence is all it wants."""
    if per_residue or isinstance(config, CnnHeadConfig | AttentionHeadConfig):
        return True
    return config.pool == "attention"


class PackedConv(nn.Module):
    """Convolution along the residues of packed sequences, zero beyond a sequence's ends.

    Notes
    -----
    One product gives what every row sends to its neighbours, (T, K C'); the parts are then shifted and summed, which
    costs little since C' is narrow.
    """

    def __init__(self, d_in: int, d_out: int, kernel: int) -> None:
        super().__init__()
        self.d_out = d_out
        # Tap by tap; the fan-in of one output is that of all taps together.
        self.weight = nn.Parameter(torch.randn(kernel * d_out, d_in) * (kernel * d_in) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        """(T, C) -> (T, C')."""
        taps = self.weight.split(self.d_out)
        half = len(taps) // 2
        place = _places(segments, half)
        # Rows of zeros between sequences: what a tap reads beyond a border is zero without a mask.
        n_rows = len(x) + (len(segments) + 1) * half
        apart = x.new_zeros(n_rows, x.shape[1]).index_copy(0, place, x)
        # Without a graph a long sequence need not hold what all taps send at once.
        at_once = torch.is_grad_enabled() or len(x) <= _ROWS_AT_ONCE
        sent = F.linear(apart, self.weight).split(self.d_out, dim=1) if at_once else None
        n_out = n_rows - 2 * half
        out: torch.Tensor | None = None
        for number, tap in enumerate(taps):
            part = F.linear(apart, tap) if sent is None else sent[number]
            part = part[number : number + n_out]
            out = part if out is None else out + part
        assert out is not None
        return out.index_select(0, place - half) + self.bias


def _places(segments: Segments, gap: int) -> torch.Tensor:
    """Row (T,) of every token where `gap` rows stand before, between and behind the sequences."""

    def make() -> torch.Tensor:
        return torch.arange(segments.n_tokens, device=segments.device) + (segments.ids + 1) * gap

    return segments.derive(("apart", gap), make)


class ReadOut(nn.Linear):
    """A linear layer whose sums and results are float32 whatever the precision of weights and input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            return F.linear(x, self.weight.double(), self.bias.double())
        return F.linear(x.float(), self.weight.float(), self.bias.float())


class LabelHead(nn.Module):
    """Standardised residue vectors, a trunk, and a read-out.

    Parameters
    ----------
    config : AnyHead
    d_model : int
        Width of the vectors.
    n_outputs : int
        Classes; 1 for a value.
    per_residue : bool
        One result a residue, else one a sequence.

    Raises
    ------
    ValueError
        A head that pools, for labels of residues.
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, config: AnyHead, d_model: int, n_outputs: int, per_residue: bool) -> None:
        super().__init__()
        if per_residue and config.kind == "attention":
            raise ValueError("the attention head makes one vector of a sequence; for labels of residues use cnn or mlp")
        self.config, self.per_residue = config, per_residue
        self.register_buffer("mean", torch.zeros(d_model))
        self.register_buffer("scale", torch.ones(d_model))
        self.dropout = nn.Dropout(config.dropout)
        self.convolutions = nn.ModuleList()
        width, hidden = d_model, []
        pool = "attention" if config.kind == "attention" else config.pool
        if config.kind == "cnn":
            for layer in range(config.n_layers):
                self.convolutions.append(
                    PackedConv(d_model if layer == 0 else config.width, config.width, config.kernel)
                )
            width = config.width
        elif config.kind == "mlp":
            hidden = [config.hidden] * config.n_hidden
        elif config.kind == "attention":
            hidden = [config.hidden]
        self.pool = AttentionPooling(width, min(width, 128)) if pool == "attention" and not per_residue else None
        self.hidden = nn.ModuleList()
        for size in hidden:
            self.hidden.append(nn.Linear(width, size))
            width = size
        self.readout = ReadOut(width, n_outputs)
        nn.init.normal_(self.readout.weight, std=0.02)
        nn.init.zeros_(self.readout.bias)

    def set_input(self, mean: torch.Tensor, spread: torch.Tensor) -> None:
        """Mean and standard deviation (E,) of the vectors that the head was made for; channels without any stay as they are."""
        self.mean.copy_(mean)
        self.scale.copy_(1 / torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def set_prior(self, outputs: torch.Tensor) -> None:
        """Results (C,) to begin with, before anything is learned."""
        with torch.no_grad():
            self.readout.bias.copy_(outputs)

    def forward(self, x: torch.Tensor, segments: Segments) -> torch.Tensor:
        """Logits or values.

        Parameters
        ----------
        x : torch.Tensor, shape (T, E)
            Vectors of the residues, without specials; one row a sequence where the mean is all that is wanted.
        segments : Segments

        Returns
        -------
        torch.Tensor, shape (T, C) or (S, C), float32
        """
        # DeepSpeed narrows weights and leaves these two as they are.
        x = ((x.to(self.mean.dtype) - self.mean) * self.scale).to(self.readout.weight.dtype)
        for number, convolution in enumerate(self.convolutions):
            out = self.dropout(F.gelu(convolution(x, segments)))
            x = out if number == 0 else x + out
        if not self.per_residue:
            x = segment_mean(x, segments).to(x.dtype) if self.pool is None else self.pool(x, segments)
        for layer in self.hidden:
            x = self.dropout(F.gelu(layer(x)))
        return self.readout(x if len(self.hidden) or len(self.convolutions) else self.dropout(x))
