"""A recurrent decoder that reads encoder states with additive attention: a sequence-to-sequence head."""

from __future__ import annotations

import torch
from torch import nn

from protlat.nn.classic.additive import AdditiveAttention
from protlat.ops.pooled import segment_mean
from protlat.ops.segments import Segments, unpack


class GRUDecoder(nn.Module):
    """Tokens of one sequence from the encoder states of another.

    At each step the last layer's GRU state asks the encoder states by additive attention; the context found and the
    embedding of the token before go, end to end, into the GRU; its output is read out as logits.

    Parameters
    ----------
    n_tokens : int
        Vocabulary V of the output.
    encoder_dim : int
        Width E of the encoder states.
    embedding_dim, hidden : int
        Width of token embeddings, and of the GRU and the attention's hidden layer.
    n_layers : int
        Of the GRU.
    dropout : float
        Between GRU layers and on attention weights, in training.

    Notes
    -----
    An encoder without recurrence has no last state: the GRU starts from tanh(W mean of the encoder states).

    References
    ----------
    Bahdanau et al. 2015, sections 3.1 and A.2.2; Cho et al. 2014 (GRU).
    """

    def __init__(
        self,
        n_tokens: int,
        encoder_dim: int,
        embedding_dim: int,
        hidden: int,
        n_layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_layers, self.hidden = n_layers, hidden
        self.embedding = nn.Embedding(n_tokens, embedding_dim)
        self.start = nn.Linear(encoder_dim, n_layers * hidden)
        self.attention = AdditiveAttention(hidden, encoder_dim, hidden, dropout)
        self.gru = nn.GRU(
            encoder_dim + embedding_dim, hidden, n_layers, batch_first=True, dropout=dropout if n_layers > 1 else 0.0
        )
        self.readout = nn.Linear(hidden, n_tokens)

    def forward(self, states: torch.Tensor, segments: Segments, inputs: torch.Tensor) -> torch.Tensor:
        """Logits under teacher forcing.

        Parameters
        ----------
        states : torch.Tensor, shape (T, E)
            Packed encoder states of S sequences.
        segments : Segments
        inputs : torch.Tensor, shape (S, L), int64
            The true tokens, begun by a start token: logits at step t are of the token after input t.

        Returns
        -------
        torch.Tensor, shape (S, L, V)
        """
        memory = self._memory(states, segments)
        hidden = self._start(states, segments)
        out = []
        for embedded in self.embedding(inputs).unbind(1):
            output, hidden = self._step(embedded, hidden, memory)
            out.append(output)
        return self.readout(torch.stack(out, 1))

    @torch.no_grad()
    def greedy(
        self, states: torch.Tensor, segments: Segments, start_id: int, stop_id: int, max_length: int
    ) -> list[list[int]]:
        """The likeliest token at every step, for each sequence until its own stop token or `max_length`.

        Returns
        -------
        list of list of int
            Neither start nor stop token is in them.
        """
        memory = self._memory(states, segments)
        hidden = self._start(states, segments)
        token = torch.full((len(segments),), start_id, device=states.device)
        stopped = torch.zeros(len(segments), dtype=torch.bool, device=states.device)
        steps: list[torch.Tensor] = []
        while len(steps) < max_length and not bool(stopped.all()):
            output, hidden = self._step(self.embedding(token), hidden, memory)
            token = self.readout(output).argmax(-1)
            stopped = stopped | (token == stop_id)
            steps.append(token)
        rows = torch.stack(steps, 1).tolist() if steps else [[] for _ in segments.lengths]
        return [row[: row.index(stop_id)] if stop_id in row else row for row in rows]

    def _memory(self, states: torch.Tensor, segments: Segments) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Encoder states padded (S, K, E), their projection (S, K, hidden), and lengths (S,)."""
        lengths = torch.tensor(segments.lengths, device=states.device)
        mask = torch.arange(max(segments.lengths), device=states.device) < lengths[:, None]
        return unpack(states, mask), unpack(self.attention.key(states), mask), lengths

    def _start(self, states: torch.Tensor, segments: Segments) -> torch.Tensor:
        """(layers, S, hidden)."""
        mean = segment_mean(states, segments).to(states.dtype)
        return torch.tanh(self.start(mean)).unflatten(-1, (self.n_layers, self.hidden)).transpose(0, 1).contiguous()

    def _step(
        self, embedded: torch.Tensor, hidden: torch.Tensor, memory: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One token of every sequence: output (S, hidden), new state (layers, S, hidden)."""
        states, projected, lengths = memory
        context = self.attention.read(hidden[-1][:, None], projected, states, lengths)
        output, hidden = self.gru(torch.cat([context, embedded[:, None]], -1), hidden)
        return output[:, 0], hidden
