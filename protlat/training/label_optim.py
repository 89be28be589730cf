"""Which weights fine-tuning moves, and how fast: the head, and, more slowly, the encoder."""

from __future__ import annotations

import re
from typing import Any

import torch
from pydantic import Field
from torch import nn

from protlat.config import Config

_LAYER = re.compile(r"^encoder\.(?:blocks|axial_blocks|cross_blocks)\.(\d+)\.")


class LabelOptimConfig(Config):
    """AdamW with float32 master weights; rates that are null are chosen by mode."""

    lr: float | None = Field(None, gt=0)
    """Highest learning rate of the head; null: 2e-3 for head, 1e-3 for lora and full."""
    encoder_lr: float | None = Field(None, gt=0)
    """Highest rate of the encoder's topmost layer, or of the adapters; null: 1e-3 for lora, 3e-4 for full."""
    layer_decay: float = Field(0.9, gt=0, le=1)
    """Mode full: each layer's rate is that of the layer above times this; the embedding's is the lowest."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of the running means of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the mean square gradient."""
    weight_decay: float = Field(0.01, ge=0)
    """Share of a weight taken off per unit of learning rate; norms, biases and embeddings are spared."""


def label_groups(
    model: nn.Module, lr: float, encoder_lr: float, layer_decay: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Parameter groups with an ``lr_ratio`` each, to be multiplied with the rate of the head.

    Parameters
    ----------
    model : LabelModel
    lr, encoder_lr, layer_decay, weight_decay : float
        See `LabelOptimConfig`.
    """
    numbers = [int(found[1]) for name, _ in model.named_parameters() if (found := _LAYER.match(name))]
    n_layers = max(numbers, default=-1) + 1
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        ratio = 1.0
        if name.startswith("encoder."):
            found = _LAYER.match(name)
            depth = n_layers - 1 - int(found[1]) if found else (0 if "final_norm" in name else n_layers)
            is_adapter = name.endswith(("lora_a", "lora_b"))
            ratio = encoder_lr / lr * (1.0 if is_adapter else layer_decay**depth)
        spared = parameter.ndim < 2 or "embedding" in name
        groups.setdefault((ratio, 0.0 if spared else weight_decay), []).append(parameter)
    return [{"params": found, "weight_decay": decay, "lr_ratio": ratio} for (ratio, decay), found in groups.items()]


def make_label_optimizer(model: nn.Module, config: LabelOptimConfig) -> torch.optim.AdamW:
    """AdamW over `label_groups`, rates filled in; the loop sets the rate before every step."""
    assert config.lr is not None
    assert config.encoder_lr is not None
    groups = label_groups(model, config.lr, config.encoder_lr, config.layer_decay, config.weight_decay)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
