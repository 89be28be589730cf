"""Low-rank adapters: linear layers that learn a product of two thin matrices beside their frozen weight."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from protlat.config import Config
from protlat.errors import ConfigError


class LoraConfig(Config):
    """Which layers get adapters, and how wide they are."""

    rank: int = Field(8, ge=1)
    """Rank of the change of each weight."""
    alpha: float = Field(16.0, gt=0)
    """Strength: the change is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share dropped of what enters an adapter."""
    targets: tuple[str, ...] = ("project", "mix", "up", "down")
    """Last words of the names of the linear layers that get one: projections of attention and feed-forward."""


class LoraLinear(nn.Linear):
    """x W^T + b + (alpha / rank) (x A^T) B^T with W and b frozen; B begins at zero, so nothing changes at the start.

    References
    ----------
    Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    """

    def __init__(self, base: nn.Linear, config: LoraConfig) -> None:
        # On no device: the parameters of the layer that is replaced are taken over.
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.weight.requires_grad_(False)
        if self.bias is not None:
            self.bias.requires_grad_(False)
        self.lora_a = nn.Parameter(base.weight.detach().new_empty(config.rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.detach().new_zeros(base.out_features, config.rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.strength = config.alpha / config.rank
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        thin = F.linear(self.dropout(x), self.lora_a)
        return F.linear(x, self.weight, self.bias) + F.linear(thin, self.lora_b) * self.strength

    def merged(self) -> nn.Linear:
        """A plain layer that does the same, its weight summed in float32 at least."""
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.no_grad():
            change = self.lora_b.to(wide) @ self.lora_a.to(wide) * self.strength
            plain.weight = nn.Parameter((self.weight.to(wide) + change).to(self.weight.dtype))
        plain.bias = self.bias
        return plain


def add_lora(model: nn.Module, config: LoraConfig) -> int:
    """Freeze a model and give its linear layers adapters; returns how many got one.

    Raises
    ------
    ConfigError
        A target that no linear layer is called by.
    """
    model.requires_grad_(False)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    known = sorted({name.rpartition(".")[2] for name in linear})
    for target in config.targets:
        if target not in known:
            raise ConfigError(f"lora.targets: no linear layer is called {target!r}; this model has {', '.join(known)}")
    chosen = [name for name in linear if name.rpartition(".")[2] in config.targets]
    for name in chosen:
        _replace(model, name, LoraLinear(linear[name], config))
    return len(chosen)


def merge_lora(model: nn.Module) -> None:
    """Turn every adapted layer into a plain one of the same function, in place."""
    for name, layer in list(_adapted(model)):
        _replace(model, name, layer.merged())


def _adapted(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield name, module


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
