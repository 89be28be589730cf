"""Pre-norm residual block: attention, then feed-forward."""

from __future__ import annotations

import torch
from torch import nn

from protlat.nn.attention.layer import AttentionLayer
from protlat.nn.norms import NormKind, build_norm
from protlat.nn.row_wise import RowWise
from protlat.nn.state import RecurrentState
from protlat.ops.local import causal_token_shift, token_shift
from protlat.ops.segments import Segments


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)).

    Parameters
    ----------
    d_model : int
    attention : AttentionLayer
    feed_forward : RowWise
    norm : "layer" or "rms"
    shift : bool
        Shift a third of the channels by one token either way before attention and before the feed-forward; when
        causal, half of them from the token before.
    dropout : float
        Share dropped of what attention and feed-forward add.
    causal : bool
        Whether no token may see a later one.
    attention_dropout : float
        Share dropped of the attention layer's output alone.
    """

    def __init__(
        self,
        d_model: int,
        attention: AttentionLayer,
        feed_forward: RowWise,
        norm: NormKind,
        shift: bool,
        dropout: float,
        causal: bool = False,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention_norm = build_norm(norm, d_model)
        self.attention = attention
        self.feed_forward_norm = build_norm(norm, d_model)
        self.feed_forward = feed_forward
        self.shift, self.causal = shift, causal
        self.dropout = nn.Dropout(dropout)
        self.attention_dropout = nn.Dropout(attention_dropout)

    def forward(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None = None) -> torch.Tensor:
        """(T, E) -> (T, E)."""
        x = self.attend(x, segments, state) + x
        return self.feed(x, segments, state) + x

    def attend(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None = None) -> torch.Tensor:
        """What attention adds to x (T, E)."""
        memory = None if state is None else state.sub("attention")
        mixed = self.mixed(self._moved(self.attention_norm(x), segments, memory), segments, memory)
        return self.dropout(self.attention_dropout(mixed))

    def mixed(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None) -> torch.Tensor:
        """Attention of what has been normed and shifted, (T, E)."""
        out: torch.Tensor = self.attention(x, segments, state)
        return out

    def feed(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None = None) -> torch.Tensor:
        """What the feed-forward adds to x (T, E)."""
        memory = None if state is None else state.sub("feed_forward")
        return self.dropout(self.feed_forward(self._moved(self.feed_forward_norm(x), segments, memory)))

    def _moved(self, x: torch.Tensor, segments: Segments, state: RecurrentState | None) -> torch.Tensor:
        if not self.shift:
            return x
        if not self.causal:
            return token_shift(x, segments)
        moved, last = causal_token_shift(x, segments, None if state is None else state.get("shift"))
        if state is not None:
            state.put("shift", last)
        return moved
