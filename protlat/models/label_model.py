"""An encoder with a head of labels, for training both or parts of them together."""

from __future__ import annotations

import torch
from torch import nn

from protlat.models.encoder import Encoder
from protlat.models.padding import round_up
from protlat.nn.heads import LabelHead
from protlat.ops.segments import Segments


class LabelModel(nn.Module):
    """Tokens with specials in, or vectors of residues where there is no encoder; logits or values out.

    Parameters
    ----------
    encoder : Encoder or None
        None: vectors come in.
    head : LabelHead
    layer : int
        Layer of the encoder that the head reads, from 0.
    """

    def __init__(self, encoder: Encoder | None, head: LabelHead, layer: int) -> None:
        super().__init__()
        self.encoder, self.head, self.layer = encoder, head, layer

    def forward(self, inputs: torch.Tensor, segments: Segments) -> torch.Tensor:
        """(T,) tokens or (T, E) vectors -> (residues or sequences, C), float32."""
        if self.encoder is None:
            rows, inner = inputs, segments
        else:
            states = self.encoder(inputs, segments, layers=(self.layer,))[self.layer]
            rows, inner = residues_only(states, segments)
        n_outputs = len(rows) if self.head.per_residue else len(inner)
        rows, inner = round_up(rows, inner, 0)
        return self.head(rows, inner)[:n_outputs]


def residues_only(x: torch.Tensor, segments: Segments) -> tuple[torch.Tensor, Segments]:
    """Rows (T, E) without the first and the last of each sequence, ``<cls>`` and ``<eos>``, and where they then lie."""

    def make() -> tuple[torch.Tensor, Segments]:
        keep = torch.ones(segments.n_tokens, dtype=torch.bool, device=segments.device)
        keep[segments.cu_seqlens[:-1]] = False
        keep[segments.cu_seqlens[1:] - 1] = False
        return keep.nonzero().flatten(), Segments([n - 2 for n in segments.lengths], segments.device)

    rows, inner = segments.derive("residues_only", make)
    return x.index_select(0, rows), inner


def train_only_reached(model: LabelModel) -> None:
    """Freeze the blocks behind the layer that the head reads: no gradient reaches them."""
    encoder = model.encoder
    if encoder is None or model.layer == encoder.config.n_layers:
        return
    encoder.final_norm.requires_grad_(False)
    for blocks in (encoder.blocks, encoder.axial_blocks, encoder.cross_blocks):
        for block in list(blocks)[model.layer :]:
            block.requires_grad_(False)
