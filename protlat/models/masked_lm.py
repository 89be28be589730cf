"""The pretraining model: an encoder and a head that predicts masked tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from protlat.alphabet import Alphabet
from protlat.models.config import ModelConfig
from protlat.models.encoder import Encoder, init_module
from protlat.models.hub import PretrainedModel
from protlat.nn.norms import build_norm
from protlat.ops.segments import Segments, rounded_size


class MaskedLMHead(nn.Module):
    """Linear, GELU, norm, then a read-out with the token embedding (tied) or weights of its own."""

    def __init__(self, config: ModelConfig, n_tokens: int) -> None:
        super().__init__()
        width = config.embedding_dim or config.d_model
        self.dense = nn.Linear(config.d_model, width)
        self.norm = build_norm(config.norm, width)
        self.readout = None if config.tie_output else nn.Linear(width, n_tokens, bias=False)
        self.bias = nn.Parameter(torch.zeros(n_tokens))
        for module in self.modules():
            init_module(module)

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        """(N, E) -> logits (N, V), float32 or wider."""
        x = self.norm(F.gelu(self.dense(x)))
        logits = F.linear(x, embedding if self.readout is None else self.readout.weight, self.bias)
        return logits if logits.dtype == torch.float64 else logits.float()


class MaskedLM(PretrainedModel):
    """Encoder with a masked-token head.

    Parameters
    ----------
    config : ModelConfig
    alphabet : Alphabet
    """

    weight_prefix = ""

    def __init__(self, config: ModelConfig, alphabet: Alphabet) -> None:
        super().__init__()
        self.config, self.alphabet = config, alphabet
        self.encoder = Encoder(config, alphabet)
        self.head = MaskedLMHead(config, len(alphabet))

    def forward(self, tokens: torch.Tensor, segments: Segments, at: torch.Tensor | None = None) -> torch.Tensor:
        """Logits over the alphabet.

        Parameters
        ----------
        tokens : torch.Tensor, shape (T,), int64
        segments : Segments
        at : torch.Tensor, shape (P,), int64, or None
            Packed positions to predict; None predicts all.

        Returns
        -------
        torch.Tensor, shape (P, V) or (T, V), float32
        """
        x = self.encoder(tokens, segments)[self.config.n_layers]
        if at is None:
            return self.head(x, self.encoder.embedding.weight)
        # Few sizes here too: see `round_up`.
        missing = rounded_size(len(at)) - len(at) if at.device.type == "cpu" else 0
        return self.head(x[F.pad(at, (0, missing))], self.encoder.embedding.weight)[: len(at)]
