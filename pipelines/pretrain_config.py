"""Every setting of a pretraining run, and where values come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config, parse_scalar, read_yaml, set_dotted
from protlat.data.batching import BatchingConfig
from protlat.data.masking import MaskingConfig
from protlat.errors import CheckpointError, ConfigError
from protlat.models import ModelConfig, load_preset, preset_names, read_model_config, resolve_model_folder
from protlat.models.recurrence import passes_state, why_no_bounded_state
from protlat.training.checkpoint import CheckpointConfig
from protlat.training.engine import EngineConfig
from protlat.training.evaluation import EvaluationConfig
from protlat.training.loop import GuardConfig, LimitsConfig
from protlat.training.optim import OptimConfig, ScheduleConfig


class PretrainConfig(Config):
    """Everything that decides a pretraining run."""

    shards: str = "shards"
    """Folder made by `protlat prep`."""
    verify_shards: bool = True
    """Compare the shards with their checksums before the run: a second or two per GB."""
    model: ModelConfig = Field(default_factory=lambda: load_preset("tiny"))
    """Architecture: a preset's name, a YAML file, or the settings themselves."""
    warm_start: str | None = None
    """Model or run folder whose weights the run begins with."""
    seed: int = Field(0, ge=0)
    """Fixes initial weights, order, crops, masks and dropout."""
    masking: MaskingConfig | None = None
    """Which residues are hidden; null for a causal model, which predicts the next one."""
    batching: BatchingConfig = BatchingConfig()
    """How sequences form batches."""
    optim: OptimConfig = OptimConfig()
    """Optimiser."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over the run."""
    limits: LimitsConfig = LimitsConfig()
    """When the run ends."""
    engine: EngineConfig = EngineConfig()
    """Device, precision, ranks."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Scores on the validation split."""
    checkpoints: CheckpointConfig = CheckpointConfig()
    """Saving the whole state."""
    guard: GuardConfig = GuardConfig()
    """Stopping a run that has gone wrong."""

    @model_validator(mode="before")
    @classmethod
    def _default_masking(cls, values: Any) -> Any:
        """Fill in what is hidden unless the model is causal, so that the saved settings show it."""
        if not isinstance(values, dict) or values.get("masking") is not None:
            return values
        model = values.get("model")
        causal = model.get("causal", False) if isinstance(model, dict) else getattr(model, "causal", False)
        return values if causal else {**values, "masking": MaskingConfig()}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.model.causal and self.masking is not None:
            raise ValueError(
                "masking: a causal model predicts the next token and hides none; leave masking out, or set model.causal=false"
            )
        if not self.model.causal and not self.evaluation.carry:
            raise ValueError(
                "evaluation.carry: a model that sees both sides has no state to carry; leave it true, and set "
                "evaluation.longest_pass to score long documents in pieces"
            )
        if self.model.context is not None:
            raise ValueError(
                "model.context: shards hold one sequence each, and no second one to read; leave context null, or train an "
                "EncoderDecoder from Python"
            )
        feed_forwards = [self.model.feed_forward_of(layer) for layer in range(self.model.n_layers)]
        if self.optim.product_key_lr is not None and all(layer.kind != "product_key" for layer in feed_forwards):
            raise ValueError("optim.product_key_lr: the model has no product_key feed-forward; leave it null")
        if self.engine.zero_stage == 3 and self.model.reversible and any(layer.chunks > 1 for layer in feed_forwards):
            # Weights that stage 3 has let go of are asked for when a slab is computed again inside a layer that is.
            raise ValueError(
                "engine.zero_stage: 3 cannot recompute feed_forward.chunks inside reversible layers; use zero_stage 1 or 2, "
                "or chunks 1"
            )
        if self.batching.long != "carry":
            return self
        if not self.model.causal:
            raise ValueError(
                "batching.long: carry passes the state of a causal model, but this one sees both sides; use pieces or crop, "
                "or set model.causal=true"
            )
        reason = why_no_bounded_state(self.model)
        if reason is not None:
            raise ValueError(
                f"batching.long: carry needs a state of fixed size at any position, but {reason}; use pieces"
            )
        return self

    @property
    def crop_length(self) -> int:
        """Most tokens of one sequence at a time: what a batch holds, and what a table of positions reaches to."""
        return min(self.model.max_length or self.batching.crop_length, self.batching.crop_length)

    @property
    def longest_pass(self) -> int:
        """Most tokens of one pass of an evaluation, where no state is passed."""
        return min(self.model.max_length or self.evaluation.longest_pass, self.evaluation.longest_pass)

    @property
    def passes_state(self) -> bool:
        """Whether documents of any length can be scored as one, piece after piece."""
        return self.evaluation.carry and passes_state(self.model)


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), model: str | None = None, **values: Any
) -> PretrainConfig:
    """Defaults < YAML file < keyword values (``limits__max_steps=300``) < ``a.b=c`` overrides.

    `model`, or the ``model`` of the file when it is a text, is a preset's name, a YAML file of model settings, or a
    model or run folder; a folder gives its weights too. Overrides such as ``model.n_layers=2`` then change it.

    Raises
    ------
    ConfigError
        A value does not fit, or the model is not found.
    """
    merged = {} if path is None else read_yaml(path)
    for key, value in values.items():
        if value is not None:
            set_dotted(merged, key.replace("__", "."), value)
    named = model if model is not None else merged.get("model", "tiny")
    if isinstance(named, str):
        # A preset wins over a folder of its name, which can be given as ./NAME.
        if named not in preset_names() and Path(named).is_dir():
            try:
                merged["model"] = read_model_config(resolve_model_folder(named))[0].to_plain()
            except CheckpointError as error:
                raise ConfigError(f"--model {named}: {error}") from None
            merged["warm_start"] = named
        else:
            merged["model"] = load_preset(named).to_plain()
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {item}: expected KEY=VALUE, for example --set optim.lr=1e-3")
        set_dotted(merged, key.strip(), parse_scalar(text))
    return PretrainConfig.parse(merged, "settings" if path is None else str(path))
