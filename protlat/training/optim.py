"""The optimiser's settings, which weights decay, and the learning rate over a run."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.config import Config
from protlat.errors import ConfigError
from protlat.nn.product_key import ProductKeyMemory


class OptimConfig(Config):
    """AdamW with float32 master weights."""

    lr: float = Field(1e-3, gt=0)
    """Highest learning rate, reached at the end of the warm-up."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of the running means of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the mean square gradient."""
    weight_decay: float = Field(0.01, ge=0)
    """Share of a weight taken off per unit of learning rate; norms, biases and embeddings are spared."""
    product_key_lr: float | None = Field(None, gt=0)
    """Highest learning rate of the values of product-key memories, of which every token moves few; the paper that
    introduced them and the reference transformer take 1e-2. null: lr."""


class ScheduleConfig(Config):
    """Learning rate over the run, as a fraction of its highest value."""

    kind: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """Form after the warm-up: half a cosine, a straight line, warm-up-stable-decay, or no decay."""
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of the run in which the rate rises from 0, in a straight line."""
    decay: float = Field(0.2, gt=0, le=1)
    """Share of the run, at its end, in which `wsd` falls in a straight line."""
    final: float = Field(0.02, ge=0, le=1)
    """Fraction of the highest rate that is left at the end of the run."""

    def factor(self, progress: float) -> float:
        """Fraction of the highest rate when `progress` (0 to 1) of the run is done.

        Notes
        -----
        With w the warm-up, f the final fraction and u = (p - w) / (1 - w): cosine is f + (1 - f)(1 + cos(pi u)) / 2,
        linear is 1 - (1 - f) u, and wsd is 1 until p = 1 - d, then linear down to f.
        """
        progress = min(max(progress, 0.0), 1.0)
        if progress < self.warmup:
            return progress / self.warmup
        done = (progress - self.warmup) / (1 - self.warmup)
        if self.kind == "constant":
            return 1.0
        if self.kind == "cosine":
            return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
        if self.kind == "wsd":
            done = max(0.0, (progress - (1 - self.decay)) / self.decay)
        return 1 - (1 - self.final) * done


def parameter_groups(
    model: nn.Module, weight_decay: float, product_key_lr_ratio: float | None = None
) -> list[dict[str, Any]]:
    """Groups for an optimiser: matrices, which decay, everything else, which does not, and values with a rate of theirs.

    Spared are biases, norm scales and every other vector, and the weights of embeddings (also where the output
    layer shares them): shrinking those moves the scale that the norms then restore. With `product_key_lr_ratio`, the
    values of product-key memories are a group of their own; the engine multiplies its rate by the group's `lr_ratio`.

    Raises
    ------
    ConfigError
        A ratio for a model without product-key memories.
    """
    memories = [module.values.weight for module in model.modules() if isinstance(module, ProductKeyMemory)]
    if product_key_lr_ratio is not None and not memories:
        raise ConfigError("optim.product_key_lr: this model has no product_key feed-forward; leave it null")
    apart = {id(value) for value in memories} if product_key_lr_ratio is not None else set()
    spared = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad and id(parameter) not in apart:
            (plain if parameter.ndim < 2 or id(parameter) in spared else decayed).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    if product_key_lr_ratio is not None:
        trained = [value for value in memories if value.requires_grad]
        groups.append({"params": trained, "weight_decay": 0.0, "lr_ratio": product_key_lr_ratio})
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """torch's AdamW over `parameter_groups`; the engine sets the rate before every step."""
    ratio = None if config.product_key_lr is None else config.product_key_lr / config.lr
    groups = parameter_groups(model, config.weight_decay, ratio)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
