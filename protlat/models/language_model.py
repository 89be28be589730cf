"""The pretraining models: an encoder and a head that predicts hidden tokens, or the next one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from protlat.alphabet import Alphabet
from protlat.errors import ConfigError
from protlat.models.config import ModelConfig
from protlat.models.encoder import Encoder
from protlat.models.hub import PretrainedModel
from protlat.models.transformer import init_module
from protlat.nn.norms import build_norm
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments, rounded_size


class TokenHead(nn.Module):
    """Linear, GELU, norm, then a read-out with the token embedding (tied) or weights of its own.

    A plain head is the read-out alone, behind a linear layer where the embedding is narrower than the model.
    """

    def __init__(self, config: ModelConfig, n_tokens: int) -> None:
        super().__init__()
        width = config.embedding_dim or config.d_model
        self.is_dense = config.head == "dense"
        projects = self.is_dense or width != config.d_model
        self.dense: nn.Module = nn.Linear(config.d_model, width) if projects else nn.Identity()
        self.norm = build_norm(config.norm, width) if self.is_dense else nn.Identity()
        self.readout = None if config.tie_output else nn.Linear(width, n_tokens, bias=False)
        self.bias = nn.Parameter(torch.zeros(n_tokens))
        for module in self.modules():
            init_module(module)

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        """(N, E) -> logits (N, V), float32 or wider."""
        x = self.dense(x)
        if self.is_dense:
            x = self.norm(F.gelu(x))
        logits = F.linear(x, embedding if self.readout is None else self.readout.weight, self.bias)
        return logits if logits.dtype == torch.float64 else logits.float()


class LanguageModel(PretrainedModel):
    """Encoder with a head that predicts tokens; use `MaskedLM` or `CausalLM`.

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
        self.head = TokenHead(config, len(alphabet))

    def forward(
        self,
        tokens: torch.Tensor,
        segments: Segments,
        at: torch.Tensor | None = None,
        state: RecurrentState | None = None,
        context: torch.Tensor | None = None,
        context_segments: Segments | None = None,
    ) -> torch.Tensor:
        """Logits over the alphabet.

        Parameters
        ----------
        tokens : torch.Tensor, shape (T,), int64
        segments : Segments
        at : torch.Tensor, shape (P,), int64, or None
            Packed positions to predict at; None: all.
        state : RecurrentState or None
            Causal models: memories of the tokens before these (see `Encoder.forward`).
        context : torch.Tensor, shape (T', C), or None
        context_segments : Segments or None
            For models with `context` settings (see `Encoder.forward`).

        Returns
        -------
        torch.Tensor, shape (P, V) or (T, V), float32
            `MaskedLM`: of the token at that position; `CausalLM`: of the one after it.
        """
        x = self.encoder(tokens, segments, (-1,), state, context, context_segments)[self.config.n_layers]
        if at is None:
            return self.head(x, self.encoder.embedding.weight)
        # Few sizes here too: see `round_up`.
        missing = rounded_size(len(at)) - len(at) if at.device.type == "cpu" else 0
        return self.head(x[F.pad(at, (0, missing))], self.encoder.embedding.weight)[: len(at)]


class MaskedLM(LanguageModel):
    """Predicts hidden tokens from both sides."""

    def __init__(self, config: ModelConfig, alphabet: Alphabet) -> None:
        if config.causal:
            raise ConfigError("a causal model predicts the next token, not hidden ones: use CausalLM, or causal: false")
        super().__init__(config, alphabet)


class CausalLM(LanguageModel):
    """Predicts the next token from those before it."""

    def __init__(self, config: ModelConfig, alphabet: Alphabet) -> None:
        if not config.causal:
            raise ConfigError(
                "a model that sees both sides cannot predict the next token: use MaskedLM, or causal: true"
            )
        super().__init__(config, alphabet)


def language_model_class(config: ModelConfig) -> type[LanguageModel]:
    """`CausalLM` or `MaskedLM`, as the settings say."""
    return CausalLM if config.causal else MaskedLM
