"""Which models can read on for ever with a state of fixed size."""

from __future__ import annotations

from protlat.models.config import ModelConfig


def why_no_bounded_state(model: ModelConfig) -> str | None:
    """Why a causal model's state cannot be passed on for ever, in words; None: it can."""
    if model.max_length is not None:
        return f"{model.positions.kind} positions end at {model.max_length}"
    for layer in range(model.n_layers):
        for group in model.groups_of(layer):
            if group.state_grows:
                return f"{group.kind} heads (layer {layer}) keep every token"
    return None


def passes_state(model: ModelConfig) -> bool:
    """Whether a sequence of any length can be read as one, piece after piece."""
    return model.causal and why_no_bounded_state(model) is None
