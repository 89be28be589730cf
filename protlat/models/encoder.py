"""Token embedding, blocks, final norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from protlat.models.context import fill_context, take_context
from protlat.models.padding import round_up
from protlat.models.transformer import Body
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments


class Encoder(Body):
    """Packed tokens in, one vector per token out.

    Parameters
    ----------
    config : ModelConfig
    alphabet : Alphabet
        Vocabulary of the tokens.
    """

    def build_input(self) -> None:
        config = self.config
        narrow = config.embedding_dim or config.d_model
        # Looked up once: compilers cannot follow the alphabet's lazy tables.
        self.pad_id = self.alphabet.pad_id
        self.embedding = nn.Embedding(len(self.alphabet), narrow)
        self.widen = nn.Linear(narrow, config.d_model) if narrow != config.d_model else nn.Identity()

    def forward(
        self,
        tokens: torch.Tensor,
        segments: Segments,
        layers: Sequence[int] = (-1,),
        state: RecurrentState | None = None,
        context: torch.Tensor | None = None,
        context_segments: Segments | None = None,
    ) -> dict[int, torch.Tensor]:
        """Vectors of the layers asked for.

        Parameters
        ----------
        tokens : torch.Tensor, shape (T,), int64
            Ids of all sequences, end to end.
        segments : Segments
            Where each sequence lies.
        layers : sequence of int
            0 is the token embedding, i the residual stream after layer i (of a reversible model: the mean of its two
            streams), n_layers (or -1) the final norm's output.
        state : RecurrentState or None
            Causal models: memories of the tokens before these, which `segments.offsets` counts. Read from
            ``state.before``, written to ``state.after``.
        context : torch.Tensor, shape (T', C), or None
            For a model with `context` settings: vectors that sequences read, end to end. Not needed where the state
            remembers them.
        context_segments : Segments or None
            Where the context of each sequence lies.

        Returns
        -------
        dict of int to torch.Tensor, shape (T, E)
            By layer number from 0.

        Raises
        ------
        ConfigError
            A layer that the model does not have, a state for a model that is not causal, a context where none is
            received or none where one is.
        SequenceError
            Not one context for each sequence, or a sequence or context longer than the model can read.
        """
        n_tokens = len(tokens)
        given = take_context(self.config, context, context_segments, state, len(segments))
        if self.rounds(state):
            tokens, segments = round_up(tokens, segments, self.pad_id)
            given = fill_context(given, len(segments))
        out = self.run(self.widen(self.embedding(tokens)), segments, layers, state, given)
        return out if len(tokens) == n_tokens else {layer: x[:n_tokens] for layer, x in out.items()}
