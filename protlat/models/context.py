"""What a model with context attention is given beside its input: checks, filler, and memory in a state."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from protlat.errors import ConfigError, SequenceError
from protlat.models.config import ModelConfig
from protlat.nn.cross_attention import Context
from protlat.nn.state import RecurrentState
from protlat.ops.segments import Segments, pack, rounded_size

_LENGTHS = "context_lengths"


def take_context(
    config: ModelConfig,
    vectors: torch.Tensor | None,
    context_segments: Segments | None,
    state: RecurrentState | None,
    n_sequences: int,
) -> Context | None:
    """The context of a call, checked; None for a model without one, or where the state remembers it.

    Raises
    ------
    ConfigError
        A context for a model that receives none, none for one that does, half of one, or one of another width.
    SequenceError
        Not one context for each sequence.
    """
    if config.context is None:
        if vectors is not None or context_segments is not None:
            raise ConfigError("this model receives no context: leave it out, or train one with model.context")
        return None
    if vectors is None or context_segments is None:
        known = state.get(_LENGTHS) if state is not None and vectors is None and context_segments is None else None
        if state is None or known is None:
            raise ConfigError(
                "this model reads a context: pass context and context_segments, or a state that remembers them (start)"
            )
        if len(known) != n_sequences or bool((known == 0).any()):
            raise SequenceError(
                f"{n_sequences} sequences, but the state remembers contexts for {int((known > 0).sum())}; pass context"
            )
        state.put(_LENGTHS, known)
        return None
    width = config.context.width or config.d_model
    if vectors.shape[-1] != width:
        raise ConfigError(f"context of width {vectors.shape[-1]}, but this model reads {width} (model.context.width)")
    if len(context_segments) != n_sequences or context_segments.n_tokens != len(vectors):
        raise SequenceError(
            f"{n_sequences} sequences, but {len(context_segments)} contexts of {context_segments.n_tokens} tokens in "
            f"{len(vectors)} rows; each sequence needs one context"
        )
    if state is not None:
        state.put(_LENGTHS, torch.tensor(context_segments.lengths, device=vectors.device))
    return Context(vectors, context_segments)


def take_padded_context(
    context: torch.Tensor | None, context_mask: torch.Tensor | None
) -> tuple[torch.Tensor | None, Segments | None]:
    """Packed form of a padded context (B, L', C) with its mask (B, L'), True = token; without a mask all are tokens."""
    if context is None:
        return None, None if context_mask is None else Segments.from_mask(context_mask)
    if context_mask is None:
        context_mask = torch.ones(context.shape[:2], dtype=torch.bool, device=context.device)
    return pack(context, context_mask), Segments.from_mask(context_mask)


def fill_context(context: Context | None, n_sequences: int) -> Context | None:
    """One more context, of zeros, where `round_up` added a sequence; its length makes few sizes here too."""
    if context is None or len(context.segments) == n_sequences:
        return context
    missing = rounded_size(len(context.vectors) + 1) - len(context.vectors)
    return Context(F.pad(context.vectors, (0, 0, 0, missing)), context.segments.with_filler(missing))
