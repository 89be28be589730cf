"""Token embedding, blocks, final norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from protlat.alphabet import Alphabet
from protlat.errors import ConfigError
from protlat.models.config import ModelConfig
from protlat.models.hub import PretrainedModel
from protlat.nn.attention.layer import AttentionLayer
from protlat.nn.block import Block
from protlat.nn.norms import build_norm
from protlat.nn.positions import LearnedPositions
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments, pack, rounded_size, unpack

INIT_STD = 0.02


class Encoder(PretrainedModel):
    """Packed tokens in, one vector per token out.

    Parameters
    ----------
    config : ModelConfig
    alphabet : Alphabet
        Vocabulary of the tokens.
    """

    weight_prefix = "encoder."

    def __init__(self, config: ModelConfig, alphabet: Alphabet) -> None:
        super().__init__()
        self.config, self.alphabet = config, alphabet
        narrow = config.embedding_dim or config.d_model
        self.embedding = nn.Embedding(len(alphabet), narrow)
        self.widen = nn.Linear(narrow, config.d_model) if narrow != config.d_model else nn.Identity()
        self.positions = config.positions.build(config.d_model)
        self.embedding_dropout = nn.Dropout(config.dropout.embedding)
        self.blocks = nn.ModuleList(self._block(layer) for layer in range(config.n_layers))
        self.final_norm = build_norm(config.norm, config.d_model)
        self.reset_parameters()

    def _block(self, layer: int) -> Block:
        config = self.config
        attention = AttentionLayer(
            config.d_model, config.head_dim, config.groups_of(layer), config.gate, config.local_conv, config.causal
        )
        feed_forward = config.feed_forward.build(config.d_model, config.dropout.feed_forward)
        return Block(
            config.d_model,
            attention,
            feed_forward,
            config.norm,
            config.token_shift,
            config.dropout.residual,
            config.causal,
        )

    def reset_parameters(self) -> None:
        """Normal weights of spread 0.02, zero biases; layers that write to the residual stream smaller with depth.

        References
        ----------
        Radford et al. 2019 (GPT-2), section 2.3: 1 / sqrt(number of residual layers).
        """
        for module in self.modules():
            init_module(module)
        for block in self.blocks:
            assert isinstance(block, Block)
            std = INIT_STD / math.sqrt(2 * self.config.n_layers)
            nn.init.normal_(block.attention.mix.weight, std=std)
            block.feed_forward.start_output(std)
            block.attention.reset_gates()

    def forward(
        self,
        tokens: torch.Tensor,
        segments: Segments,
        layers: Sequence[int] = (-1,),
        state: RecurrentState | None = None,
    ) -> dict[int, torch.Tensor]:
        """Vectors of the layers asked for.

        Parameters
        ----------
        tokens : torch.Tensor, shape (T,), int64
            Ids of all sequences, end to end.
        segments : Segments
            Where each sequence lies.
        layers : sequence of int
            0 is the token embedding, i the residual stream after block i, n_layers (or -1) the final norm's output.
        state : RecurrentState or None
            Causal models: memories of the tokens before these, which `segments.offsets` counts. Read from
            ``state.before``, written to ``state.after``.

        Returns
        -------
        dict of int to torch.Tensor, shape (T, E)
            By layer number from 0.

        Raises
        ------
        ConfigError
            A layer that the model does not have, or a state for a model that is not causal.
        """
        if state is not None and not self.config.causal:
            raise ConfigError("this model is not causal, so it keeps no state; train one with model.causal=true")
        wanted = {self.resolve_layer(layer) for layer in layers}
        n_tokens = len(tokens)
        if not isinstance(self.positions, LearnedPositions) and state is None:
            # The filler could be longer than a table of learned positions, and it has no row in a state.
            tokens, segments = round_up(tokens, segments, self.alphabet.pad_id)
        out = self._forward(tokens, segments, wanted, state)
        return out if len(tokens) == n_tokens else {layer: x[:n_tokens] for layer, x in out.items()}

    def _forward(
        self, tokens: torch.Tensor, segments: Segments, wanted: set[int], state: RecurrentState | None
    ) -> dict[int, torch.Tensor]:
        out: dict[int, torch.Tensor] = {}
        x = self.embedding_dropout(self.positions(self.widen(self.embedding(tokens)), segments))
        if 0 in wanted:
            out[0] = x
        last = max(wanted)
        for number, block in enumerate(self.blocks[:last], start=1):
            memory = None if state is None else state.sub(f"blocks.{number - 1}")
            if self.config.checkpoint_activations and torch.is_grad_enabled():
                x = checkpoint(block, x, segments, memory, use_reentrant=False)
            else:
                x = block(x, segments, memory)
            if number in wanted and number < self.config.n_layers:
                out[number] = x
        if self.config.n_layers in wanted:
            out[self.config.n_layers] = self.final_norm(x)
        return out

    def forward_padded(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Last-layer vectors of a padded batch.

        Parameters
        ----------
        tokens : torch.Tensor, shape (B, L), int64
        mask : torch.Tensor, shape (B, L), bool
            True = token; tokens stand before the padding of each row. What stands in the padding is never read.

        Returns
        -------
        torch.Tensor, shape (B, L, E)
            Zero in the padding.
        """
        packed = self(pack(tokens, mask), Segments.from_mask(mask))
        return unpack(packed[self.config.n_layers], mask)

    def resolve_layer(self, layer: int) -> int:
        """0-based layer number of a possibly negative one.

        Raises
        ------
        ConfigError
            The model does not have it.
        """
        n_layers = self.config.n_layers
        if not -n_layers - 1 <= layer <= n_layers:
            raise ConfigError(
                f"layer {layer}: this model has layers 0 (embedding) to {n_layers}, or -{n_layers + 1} to -1"
            )
        return layer if layer >= 0 else n_layers + 1 + layer


def round_up(tokens: torch.Tensor, segments: Segments, pad_id: int) -> tuple[torch.Tensor, Segments]:
    """Add filler on CPU, so that batches come in few sizes.

    oneDNN, which multiplies bfloat16 matrices on CPU, builds and keeps a program for every new number of rows: with
    batches of any size that costs a third of the speed and memory that grows with every batch. The filler is one more
    sequence, and sequences do not see each other.
    """
    missing = rounded_size(len(tokens)) - len(tokens)
    if missing == 0 or tokens.device.type != "cpu":
        return tokens, segments
    return F.pad(tokens, (0, missing), value=pad_id), segments.with_filler(missing)


def init_module(module: nn.Module) -> None:
    """Normal weights and zero biases for linear layers and embeddings; other modules keep their own start."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
