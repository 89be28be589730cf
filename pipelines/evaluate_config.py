"""Every setting of `protlat evaluate`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from protlat.config import Config
from protlat.evaluation.probe_fits import ProbeConfig
from protlat.evaluation.results import BASELINE_ROWS, MODEL_ROWS, ROWS
from protlat.inference.variant_scores import Scoring


class SampleConfig(Config):
    """How much of each split is used: random proteins, the same for every row, until this many residues are reached."""

    train: int | None = Field(350_000, ge=1)
    """Residues of the training split; null: all."""
    valid: int | None = Field(50_000, ge=1)
    """Residues of the validation split; null: all."""
    test: int | None = Field(250_000, ge=1)
    """Residues of each test split; null: all."""


class EvaluateConfig(Config):
    """Settings of `protlat evaluate`."""

    model: str = ""
    """Model folder, or the run folder of a pretraining."""
    output: str = ""
    """Folder for report.html, scores.json, scores.tsv and the rows that a rerun goes on from."""
    tasks: tuple[str, ...] = ()
    """Names of tasks that come with protlat, YAML files or labelled files; empty: all that come with it and have their data."""
    data: str | None = None
    """Folder that the tasks' paths are relative to; null: the variable PROTLAT_DATA."""
    rows: tuple[str, ...] = (*BASELINE_ROWS, "probe", "head", "zero_shot")
    """What is scored on every task it fits: baselines and ways to use the model."""
    heldout: str | None = None
    """Shard folder whose validation split gives a masked-language score by source; null: none."""
    heldout_tokens: int = Field(400_000, ge=1)
    """Tokens of it that are read at most, always the same ones."""
    floor_tokens: int = Field(30_000_000, ge=1)
    """Residues of its training split that the floors are counted from at most."""
    sample: SampleConfig = SampleConfig()
    """How much of every task is used."""
    samples: dict[str, SampleConfig] = Field(
        default_factory=lambda: {
            # Thousands of classes with a few members each: a small part of them would teach nothing.
            "enzyme_ec": SampleConfig(train=1_500_000, valid=150_000),
            # Variants of one protein differ in four places: more of them bring little.
            **{f"gb1_{name}": SampleConfig(train=120_000, test=150_000) for name in ("low_vs_high", "one_vs_rest", "sampled", "three_vs_rest", "two_vs_rest")},
        }
    )  # fmt: skip
    """The same for single tasks, by name."""
    head_residues: int = Field(2_000_000, ge=1)
    """Training residues that a head sees at most, repeats counted; it stops earlier when validation no longer gets better."""
    scratch_residues: int = Field(200_000, ge=1)
    """The same for the architecture that is trained from scratch; it costs as much as pretraining does."""
    full_residues: int = Field(350_000, ge=1)
    """The same for rows full and lora."""
    probe: ProbeConfig = ProbeConfig(max_rows=60_000, max_selection_rows=12_000)
    """How linear rows are fitted."""
    layer: int = -1
    """Layer that probe and head read: 0 is the token embedding, -1 the last."""
    scoring: Scoring = "masked-marginal"
    """How row zero_shot scores variants."""
    pair_steps: int = Field(300, ge=1)
    """Steps of a pair head."""
    pair: dict[str, Any] = Field(default_factory=dict)
    """Tasks of pairs: settings of their head and training (see docs/contacts.md)."""
    n_bootstrap: int = Field(1000, ge=0)
    """Resampled sets of proteins behind every interval; 0: no intervals."""
    seed: int = Field(0, ge=0)
    """Fixes samples, random weights, training and resampling."""
    cache: str | None = None
    """Folder where vectors are kept for later runs; null: in the output folder, until their task is done."""
    reuse: tuple[str, ...] = ()
    """Output folders of other evaluations, whose rows are taken over where task, data and settings are the same."""
    toks_per_batch: int | None = Field(None, ge=1)
    """Tokens of one forward pass; null: 8,192 on a CPU, 65,536 on a GPU."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Working precision; auto: bfloat16 where the processor multiplies it natively."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; null: all."""
    overwrite: bool = False
    """Compute every row anew."""

    @field_validator("rows")
    @classmethod
    def _known_rows(cls, rows: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [row for row in rows if row not in ROWS]
        if unknown:
            raise ValueError(f"row {unknown[0]!r} is unknown; known: {', '.join(ROWS)}")
        if not rows:
            raise ValueError(f"at least one of {', '.join(ROWS)}")
        # One order in every report.
        return tuple(row for row in ROWS if row in rows)

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if len(set(self.tasks)) < len(self.tasks):
            raise ValueError("tasks: a task stands twice")
        return self

    @property
    def model_rows(self) -> tuple[str, ...]:
        """Ways to use the model that were asked for."""
        return tuple(row for row in self.rows if row in MODEL_ROWS)

    def sample_of(self, task: str) -> SampleConfig:
        """How much of a task is used."""
        return self.samples.get(task, self.sample)
