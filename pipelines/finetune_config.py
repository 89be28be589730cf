"""Every setting of `protlat finetune`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from protlat.config import Config
from protlat.evaluation.probe_fits import ProbeConfig
from protlat.nn.heads import AnyHead, AttentionHeadConfig, CnnHeadConfig
from protlat.nn.lora import LoraConfig
from protlat.tasks.data import TaskType
from protlat.training.checkpoint import CheckpointConfig
from protlat.training.engine import EngineConfig
from protlat.training.label_optim import LabelOptimConfig
from protlat.training.optim import ScheduleConfig

Mode = Literal["probe", "head", "lora", "full"]


def default_head(task_type: TaskType) -> AttentionHeadConfig | CnnHeadConfig:
    """Convolutions, but for values of sequences, of which there are few and which they learn by heart."""
    return AttentionHeadConfig() if task_type == "sequence_value" else CnnHeadConfig()


class FinetuneLimitsConfig(Config):
    """When training ends; what is null is chosen by mode and by the size of the training set."""

    epochs: float | None = Field(None, gt=0)
    """Most passes over the training split; null: 30 for head, 15 for lora and full, within `min_steps` and `most_steps`."""
    max_steps: int | None = Field(None, ge=1)
    """Most steps, in place of `epochs`."""
    min_steps: int = Field(600, ge=1)
    """With neither given: steps that a small training set is gone over for at least."""
    most_steps: int = Field(3000, ge=1)
    """With neither given: steps after which a large training set is done."""
    patience: int = Field(5, ge=1)
    """Evaluations without a better validation score after which training ends."""
    evaluate_every: int | None = Field(None, ge=1)
    """Steps between two evaluations; null: one epoch, but at least 20 steps and at most 500."""


class FinetuneConfig(Config):
    """Settings of `protlat finetune`."""

    task: str = ""
    """Name of a task that comes with protlat, a YAML file, or a labelled file."""
    data: str | None = None
    """Folder that the task's paths are relative to."""
    task_overrides: tuple[str, ...] = ()
    """KEY=VALUE changes of the task's own settings."""
    model: str = ""
    """Model folder, or the run folder of a pretraining."""
    output: str = ""
    """Folder for the result."""
    mode: Mode = "head"
    """probe: scikit-learn on frozen vectors; head: a network on frozen vectors; lora: adapters too; full: all weights."""
    head: AnyHead | None = None
    """The network; null: attention for values of sequences, else cnn, which pools by attention too."""
    probe: ProbeConfig = ProbeConfig()
    """Mode probe."""
    lora: LoraConfig = LoraConfig()
    """Mode lora."""
    pair: dict[str, Any] = Field(default_factory=dict)
    """Tasks of pairs: settings of their head and training (see docs/contacts.md)."""
    layer: int = -1
    """Layer that the head reads: 0 is the token embedding, -1 the last."""
    cache: str | None = None
    """Folder where vectors of frozen encoders are kept; null: PROTLAT_CACHE, or protlat/features among the user's caches."""
    seed: int = Field(0, ge=0)
    """Fixes initial weights, order, dropout and subsamples."""
    class_weights: Literal["task", "none", "balanced"] = "task"
    """balanced: every class counts the same; task: as the task says."""
    calibrate: bool = True
    """Fit a temperature on the validation split."""
    n_bootstrap: int = Field(1000, ge=0)
    """Resampled sets behind the interval of each score; 0: no intervals."""
    tokens_per_batch: int | None = Field(None, ge=3)
    """Residues of one batch; null: 8,192 for head, 4,096 for lora and full. A longer sequence is a batch of its own."""
    optim: LabelOptimConfig = LabelOptimConfig()
    """Optimiser."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate over the run."""
    limits: FinetuneLimitsConfig = FinetuneLimitsConfig()
    """When training ends."""
    engine: EngineConfig = EngineConfig()
    """Device, precision, ranks."""
    checkpoints: CheckpointConfig = CheckpointConfig(keep=2)
    """Saving the whole state, beside the one after every better evaluation."""
    resume: bool = False
    """Go on with an unfinished run in the output folder."""
    overwrite: bool = False
    """Delete the run in the output folder first."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.resume and self.overwrite:
            raise ValueError("resume and overwrite exclude each other")
        if self.head is not None and self.mode == "probe":
            raise ValueError(f"head: mode probe takes probe.kind (logistic, ridge, knn), not the head {self.head.kind}")
        if self.limits.epochs is not None and self.limits.max_steps is not None:
            raise ValueError("limits: give epochs or max_steps, not both")
        return self

    def resolved(self, task_type: TaskType) -> FinetuneConfig:
        """These settings with what is null filled in for the mode and the kind of task."""
        rates = {"probe": (2e-3, 2e-3), "head": (2e-3, 2e-3), "lora": (1e-3, 1e-3), "full": (1e-3, 3e-4)}[self.mode]
        optim = self.optim.model_copy(
            update={"lr": self.optim.lr or rates[0], "encoder_lr": self.optim.encoder_lr or rates[1]}
        )
        update: dict[str, Any] = {"optim": optim}
        if self.tokens_per_batch is None:
            update["tokens_per_batch"] = 8192 if self.mode == "head" else 4096
        if self.head is None and self.mode != "probe":
            update["head"] = default_head(task_type)
        return self.model_copy(update=update)
