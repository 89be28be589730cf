"""protlat and its peers at one size: 7.4M parameters, width 320, 6 layers, random weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from protlat.alphabet import PROTEIN
from protlat.models import MaskedLM, load_preset
from protlat.ops.segments import Segments

Forward = Callable[[torch.Tensor], torch.Tensor]
"""(B, L) ids without padding to (B, L, E) vectors."""


def protlat() -> tuple[nn.Module, Callable[[nn.Module], Forward]]:
    """Preset `small`."""
    model = MaskedLM(load_preset("small"), PROTEIN)

    def forward(module: nn.Module) -> Forward:
        def run(tokens: torch.Tensor) -> torch.Tensor:
            batch, length = tokens.shape
            # Tables are made anew for each call, as they are for each batch of real input.
            hidden = module.encoder(tokens.flatten(), Segments([length] * batch))
            return next(iter(hidden.values())).unflatten(0, (batch, length))

        return run

    return model, forward


def lat(length: int) -> tuple[nn.Module, Callable[[nn.Module], Forward]]:
    """linear-attention-transformer with the same split of heads and window: 2 local heads of 64 channels, 3 global."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from linear_attention_transformer import LinearAttentionTransformerLM

    model = LinearAttentionTransformerLM(
        num_tokens=len(PROTEIN), dim=320, depth=6, heads=5, dim_head=64, max_seq_len=lat_length(length),
        n_local_attn_heads=2, local_attn_window_size=64, causal=False, return_embeddings=True,
    )  # fmt: skip

    def forward(module: nn.Module) -> Forward:
        def run(tokens: torch.Tensor) -> torch.Tensor:
            missing = lat_length(tokens.shape[1]) - tokens.shape[1]
            mask = torch.ones_like(tokens, dtype=torch.bool)
            if missing:
                tokens, mask = nn.functional.pad(tokens, (0, missing)), nn.functional.pad(mask, (0, missing))
            return module(tokens, input_mask=mask)

        return run

    return model, forward


def lat_length(length: int) -> int:
    """LAT takes multiples of its window only."""
    return -(-length // 64) * 64


def esm2() -> tuple[nn.Module, Callable[[nn.Module], Forward]]:
    """ESM-2 8M's architecture from transformers, with SDPA."""
    from transformers import EsmConfig, EsmModel

    settings: dict[str, Any] = {
        "vocab_size": len(PROTEIN), "hidden_size": 320, "num_hidden_layers": 6, "num_attention_heads": 20,
        "intermediate_size": 1280, "position_embedding_type": "rotary", "pad_token_id": PROTEIN.pad_id,
        "mask_token_id": PROTEIN.mask_id, "max_position_embeddings": 1026, "token_dropout": False,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": "sdpa",
    }  # fmt: skip
    model = EsmModel(EsmConfig(**settings), add_pooling_layer=False)

    def forward(module: nn.Module) -> Forward:
        def run(tokens: torch.Tensor) -> torch.Tensor:
            return module(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state

        return run

    return model, forward


def build(name: str, length: int) -> tuple[nn.Module, Callable[[nn.Module], Forward]]:
    """A candidate by name: protlat, lat or esm2."""
    return {"protlat": protlat, "lat": lambda: lat(length), "esm2": esm2}[name]()


def parameters(model: nn.Module) -> int:
    """Trained values, heads that the comparison does not run left out."""
    inner = model.encoder if isinstance(model, MaskedLM) else model
    return sum(p.numel() for p in inner.parameters())
