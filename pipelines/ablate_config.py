"""Settings of an ablation: what all runs share, and how each variant of the model differs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from protlat.config import Config, read_yaml, set_dotted
from protlat.errors import ConfigError
from protlat.models import ModelConfig, load_preset

from .pretrain_config import PretrainConfig

_HIDDEN_STEP = 8
"""Hidden widths stay multiples of this: odd ones are slow, and would blur the comparison of times."""


class TimingConfig(Config):
    """How the speed of the variants is compared: in alternation, in one process, apart from the runs."""

    rounds: int = Field(7, ge=1)
    """Forward and backward passes of each variant, in turn; the median counts."""
    tokens_per_batch: int | None = Field(None, ge=3)
    """Tokens of a pass; null: as in training."""


class AblateConfig(Config):
    """Variants of a model, trained alike."""

    shards: str = "shards"
    """Folder made by `protlat prep`."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Settings of `protlat pretrain` that all runs share; `model` may name a preset."""
    variants: dict[str, dict[str, Any]] = Field(min_length=2)
    """Changes to the settings under `base.model`, by name; the first is what the others are compared with."""
    seeds: tuple[int, ...] = Field((0, 1), min_length=2)
    """Seeds of weights, data order, crops, masks and dropout; every variant is trained with each."""
    tolerance: float = Field(0.02, gt=0, lt=1)
    """Greatest relative difference in the number of parameters; feed-forward widths are changed to meet it."""
    timing: TimingConfig = TimingConfig()
    """Comparison of speeds."""

    @field_validator("variants")
    @classmethod
    def _names(cls, variants: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name in variants:
            if not name or not all(c.isalnum() or c in "-_+." for c in name):
                raise ValueError(f"{name!r}: names of variants are made of letters, digits and - _ + .")
        return variants

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("seeds must differ")
        return seeds


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it; a part whose `kind` changes is replaced whole, as are lists."""
    out = copy.deepcopy(base)
    for key, value in changes.items():
        old = out.get(key)
        same_kind = (
            isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind")
        )
        out[key] = merged(old, value) if same_kind and isinstance(old, dict) else copy.deepcopy(value)
    return out


def load_ablation(path: str | Path, shards: str | None = None, overrides: tuple[str, ...] = ()) -> AblateConfig:
    """Read the YAML file of an ablation.

    Raises
    ------
    ConfigError
        The file, or a variant in it, does not fit.
    """
    from protlat.config import parse_scalar

    values = read_yaml(path)
    if shards is not None:
        values["shards"] = shards
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {item}: expected KEY=VALUE, for example --set base.limits.max_tokens=1000000")
        set_dotted(values, key.strip(), parse_scalar(text))
    return AblateConfig.parse(values, str(path))


def runs_of(config: AblateConfig, n_tokens: int, count: Any) -> dict[str, PretrainConfig]:
    """Settings of a run of every variant, seed left at its default, with parameters matched.

    Parameters
    ----------
    config : AblateConfig
    n_tokens : int
        Size of the alphabet.
    count : callable
        Number of parameters of a `ModelConfig`.

    Raises
    ------
    ConfigError
        A variant's settings do not fit, or its parameters cannot be matched.
    """
    base = copy.deepcopy(config.base)
    model = base.pop("model", "tiny")
    plain = load_preset(model).to_plain() if isinstance(model, str) else model
    models = {
        name: ModelConfig.parse(merged(plain, changes), f"variants.{name}") for name, changes in config.variants.items()
    }
    wanted = count(next(iter(models.values())))
    runs = {}
    for name, settings in models.items():
        matched = _match(settings, wanted, count)
        off = count(matched) / wanted - 1
        if abs(off) > config.tolerance:
            raise ConfigError(
                f"variants.{name}: {count(matched):,} parameters, {off:+.1%} from the {wanted:,} of the first variant, "
                f"whatever the width of its feed-forward; give it another size"
            )
        values = {**base, "shards": config.shards, "model": matched.to_plain()}
        runs[name] = PretrainConfig.parse(values, "base")
    return runs


def _match(model: ModelConfig, wanted: int, count: Any) -> ModelConfig:
    """The model with the hidden width that brings it nearest to `wanted` parameters."""
    d_model, feed_forward = model.d_model, model.feed_forward
    if feed_forward.kind == "product_key":
        # It has no hidden width.
        return model

    def with_hidden(hidden: int) -> ModelConfig:
        values = model.to_plain()
        values["feed_forward"]["expansion"] = hidden / d_model
        return ModelConfig.parse(values)

    hidden = max(_HIDDEN_STEP, round(feed_forward.expansion * d_model / _HIDDEN_STEP) * _HIDDEN_STEP)
    here = count(with_hidden(hidden))
    # Over two steps, since some kinds round their width to 16.
    per_step = (count(with_hidden(hidden + 2 * _HIDDEN_STEP)) - here) / 2
    if per_step <= 0:
        return model
    steps = round((wanted - here) / per_step)
    return with_hidden(max(_HIDDEN_STEP, hidden + steps * _HIDDEN_STEP))
