"""The body that all models share (blocks and final norm), and the transformer that reads vectors instead of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from protlat.alphabet import PROTEIN, Alphabet
from protlat.errors import ConfigError
from protlat.models.config import ModelConfig
from protlat.models.context import fill_context, take_context, take_padded_context
from protlat.models.hub import PretrainedModel
from protlat.models.padding import round_up
from protlat.nn.attention.layer import AttentionLayer
from protlat.nn.attention.linformer import share_maps
from protlat.nn.axial import AxialBlock
from protlat.nn.block import Block
from protlat.nn.cross_attention import Context, CrossAttention, CrossBlock
from protlat.nn.norms import build_norm
from protlat.nn.reversible import Addition, reversible_chain
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments, pack, unpack

INIT_STD = 0.02
# Longest filler that `round_up` adds is one less.
_LARGEST_STEP = 256


class Body(PretrainedModel):
    """Positions, blocks, final norm; `Encoder` and `Transformer` say what goes in.

    Parameters
    ----------
    config : ModelConfig
    alphabet : Alphabet
    """

    weight_prefix = "encoder."

    def __init__(self, config: ModelConfig, alphabet: Alphabet) -> None:
        super().__init__()
        self.config, self.alphabet = config, alphabet
        # A plain attribute: compilers cannot follow a look at settings that may not be there.
        self.max_length = config.max_length
        limits = (self.max_length, getattr(config.context, "max_length", None))
        self.takes_filler = all(limit is None or limit >= _LARGEST_STEP for limit in limits)
        self.build_input()
        self.positions = config.positions.build(config.d_model)
        self.embedding_dropout = nn.Dropout(config.dropout.embedding)
        self.blocks = nn.ModuleList(self._block(layer) for layer in range(config.n_layers))
        axial = config.n_layers if config.axial_block is not None else 0
        self.axial_blocks = nn.ModuleList(self._axial_block(layer) for layer in range(axial))
        cross = config.n_layers if config.context is not None else 0
        self.cross_blocks = nn.ModuleList(self._cross_block() for _ in range(cross))
        # Linformer matrices that all layers read; they stand here, once.
        for name, readers in (("shared_maps", self.blocks), ("shared_context_maps", self.cross_blocks)):
            shared = share_maps(readers.modules())
            if shared is not None:
                self.add_module(name, shared)
        self.final_norm = build_norm(config.norm, config.d_model)
        self.reset_parameters()

    def build_input(self) -> None:
        """Make the modules that stand before the positions."""

    def _block(self, layer: int) -> Block:
        config = self.config
        attention = AttentionLayer(
            config.d_model, config.head_dim, config.groups_of(layer), config.gate, config.local_conv, config.causal
        )
        feed_forward = config.feed_forward_of(layer).build(config.d_model, config.dropout.feed_forward)
        dropout = config.dropout
        return Block(
            config.d_model, attention, feed_forward, config.norm, config.token_shift, dropout.residual,
            config.causal, dropout.attention_layer,
        )  # fmt: skip

    def _axial_block(self, layer: int) -> AxialBlock:
        config = self.config
        assert config.axial_block is not None
        groups = (config.axial_group_of(layer),)
        attention = AttentionLayer(config.d_model, config.head_dim, groups, config.gate, None, config.causal)
        feed_forward = config.feed_forward.build(config.d_model, config.dropout.feed_forward)
        return AxialBlock(
            config.axial_block.width, config.d_model, attention, feed_forward, config.norm, config.dropout.residual,
            config.dropout.attention_layer,
        )  # fmt: skip

    def _cross_block(self) -> CrossBlock:
        config, context, dropout = self.config, self.config.context, self.config.dropout
        assert context is not None
        attention = CrossAttention(
            config.d_model, context.width or config.d_model, context.n_heads, context.head_dim or config.head_dim,
            context.build(),
        )  # fmt: skip
        feed_forward = context.feed_forward.build(config.d_model, dropout.feed_forward)
        return CrossBlock(
            config.d_model, attention, feed_forward, config.norm, dropout.residual, dropout.attention_layer
        )

    def _stages(
        self, layer: int, context: Context | None = None
    ) -> Iterator[tuple[str, Block | CrossBlock, dict[str, Any]]]:
        """Residual blocks of one 0-based layer, in order, each with the name of its part of a state and further input."""
        for name in ("blocks", "axial_blocks", "cross_blocks"):
            blocks: nn.ModuleList = self.get_submodule(name)  # type: ignore[assignment]
            if len(blocks):
                block = blocks[layer]
                assert isinstance(block, Block | CrossBlock)
                yield f"{name}.{layer}", block, {"context": context} if isinstance(block, CrossBlock) else {}

    def reset_parameters(self) -> None:
        """Normal weights of spread 0.02, zero biases; layers that write to the residual stream smaller with depth.

        References
        ----------
        Radford et al. 2019 (GPT-2), section 2.3: 1 / sqrt(number of residual layers).
        """
        for module in self.modules():
            init_module(module)
        blocks = [block for layer in range(self.config.n_layers) for _, block, _ in self._stages(layer)]
        std = INIT_STD / math.sqrt(2 * len(blocks))
        for block in blocks:
            nn.init.normal_(block.attention.mix.weight, std=std)
            block.feed_forward.start_output(std)
            if isinstance(block, Block):
                block.attention.reset_gates()

    def run(
        self,
        x: torch.Tensor,
        segments: Segments,
        layers: Sequence[int],
        state: RecurrentState | None,
        context: Context | None = None,
    ) -> dict[int, torch.Tensor]:
        """Vectors of the layers asked for, from what stands before the positions, (T, E)."""
        if state is not None and not self.config.causal:
            raise ConfigError("this model is not causal, so it keeps no state; train one with model.causal=true")
        wanted = {self.resolve_layer(layer) for layer in layers}
        x = self.embedding_dropout(self.positions(x, segments))
        values = self._reversible_layers if self.config.reversible else self._layers
        out = values(x, segments, wanted, state, context)
        if self.config.n_layers in wanted:
            out[self.config.n_layers] = self.final_norm(out[self.config.n_layers])
        return out

    def _layers(
        self,
        x: torch.Tensor,
        segments: Segments,
        wanted: set[int],
        state: RecurrentState | None,
        context: Context | None,
    ) -> dict[int, torch.Tensor]:
        out = {0: x} if 0 in wanted else {}
        recompute = self.config.checkpoint_activations and torch.is_grad_enabled()
        for number in range(1, max(wanted) + 1):
            if recompute:
                x = checkpoint(self._layer, number - 1, x, segments, state, context, use_reentrant=False)
            else:
                x = self._layer(number - 1, x, segments, state, context)
            if number in wanted:
                out[number] = x
        return out

    def _layer(
        self,
        layer: int,
        x: torch.Tensor,
        segments: Segments,
        state: RecurrentState | None,
        context: Context | None,
    ) -> torch.Tensor:
        for name, block, more in self._stages(layer, context):
            x = block(x, segments, None if state is None else state.sub(name), **more)
        return x

    def _reversible_layers(
        self,
        x: torch.Tensor,
        segments: Segments,
        wanted: set[int],
        state: RecurrentState | None,
        context: Context | None,
    ) -> dict[int, torch.Tensor]:
        additions: list[Addition] = []
        number_at = {0: 0}
        for layer in range(max(wanted)):
            for name, block, more in self._stages(layer, context):
                memory = None if state is None else state.sub(name)
                additions.append(partial(block.attend, segments=segments, state=memory, **more))
                additions.append(partial(block.feed, segments=segments, state=memory))
            number_at[len(additions)] = layer + 1
        means = reversible_chain(x, additions, [at for at, number in number_at.items() if number in wanted])
        return {number_at[at]: mean for at, mean in means.items()}

    def remember(self, context: torch.Tensor, context_segments: Segments) -> RecurrentState:
        """A state that holds what a causal model needs of the contexts, so that calls with it need none.

        Parameters
        ----------
        context : torch.Tensor, shape (T', C)
        context_segments : Segments

        Raises
        ------
        ConfigError
            The model receives no context, or one of another width, or is not causal.
        """
        if not self.config.causal:
            raise ConfigError("this model is not causal, so it keeps no state; train one with model.causal=true")
        state = RecurrentState()
        given = take_context(self.config, context, context_segments, state, len(context_segments))
        assert given is not None
        for layer, block in enumerate(self.cross_blocks):
            assert isinstance(block, CrossBlock)
            block.attention.remember(given, state.sub(f"cross_blocks.{layer}.attention"))
        return state.next()

    def forward_padded(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        context: torch.Tensor | None = None,
        context_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Last-layer vectors of a padded batch; `pad_sequences` makes one of sequences of any length.

        Parameters
        ----------
        x : torch.Tensor, shape (B, L) int64 tokens, or (B, L, E) vectors for a `Transformer`
        mask : torch.Tensor, shape (B, L), bool
            True = token; tokens stand before the padding of each row. What stands in the padding is never read.
        context : torch.Tensor, shape (B, L', C), or None
            For a model that receives one: row b is read by row b of x.
        context_mask : torch.Tensor, shape (B, L'), bool, or None
            True = token; None: all are.

        Returns
        -------
        torch.Tensor, shape (B, L, E)
            Zero in the padding.
        """
        vectors, context_segments = take_padded_context(context, context_mask)
        packed = self(pack(x, mask), Segments.from_mask(mask), context=vectors, context_segments=context_segments)
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

    def rounds(self, state: RecurrentState | None) -> bool:
        """Whether `round_up` may lengthen a batch.

        The filler could be longer than the longest sequence allowed, and it has no row in a state.
        """
        return state is None and self.takes_filler


class Transformer(Body):
    """Vectors in, vectors out: the blocks of an encoder without a token embedding.

    Parameters
    ----------
    config : ModelConfig
        `embedding_dim`, `head` and `tie_output` belong to models of tokens; the first is refused.
    alphabet : Alphabet
        Recorded in the model folder. Vectors are not tokens; a folder of a language model can be loaded without its
        embedding, though.

    Raises
    ------
    ConfigError
        A factorised token embedding is asked for.

    Examples
    --------
    >>> import torch
    >>> from protlat.models import ModelConfig, Transformer, pad_sequences
    >>> model = Transformer(ModelConfig(d_model=16, n_layers=2, head_dim=8))
    >>> padded, mask = pad_sequences([torch.randn(5, 16), torch.randn(9, 16)])
    >>> model.forward_padded(padded, mask).shape
    torch.Size([2, 9, 16])
    """

    def __init__(self, config: ModelConfig, alphabet: Alphabet = PROTEIN) -> None:
        if config.embedding_dim is not None:
            raise ConfigError("embedding_dim factorises a token embedding, which a Transformer does not have; set null")
        super().__init__(config, alphabet)

    def forward(
        self,
        x: torch.Tensor,
        segments: Segments,
        layers: Sequence[int] = (-1,),
        state: RecurrentState | None = None,
        context: torch.Tensor | None = None,
        context_segments: Segments | None = None,
    ) -> dict[int, torch.Tensor]:
        """Vectors of the layers asked for.

        Parameters
        ----------
        x : torch.Tensor, shape (T, E)
            Vectors of all sequences, end to end.
        segments, layers, state, context, context_segments
            As in `Encoder.forward`; layer 0 is x with its positions.

        Returns
        -------
        dict of int to torch.Tensor, shape (T, E)
            By layer number from 0.

        Raises
        ------
        ConfigError
            A layer that the model does not have, a state for a model that is not causal, a context where none is
            received or none where one is.
        """
        n_rows = len(x)
        given = take_context(self.config, context, context_segments, state, len(segments))
        if self.rounds(state):
            x, segments = round_up(x, segments, 0)
            given = fill_context(given, len(segments))
        out = self.run(x, segments, layers, state, given)
        return out if len(x) == n_rows else {layer: value[:n_rows] for layer, value in out.items()}


def init_module(module: nn.Module) -> None:
    """Normal weights and zero biases for linear layers and embeddings; other modules keep their own start."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
