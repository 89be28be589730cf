"""Steps of fine-tuning, validation after every epoch or so, and stopping when it no longer gets better."""

from __future__ import annotations

import json
import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from protlat.data.batching import BatchPlan, Position, Prefetcher
from protlat.errors import CheckpointError, TrainingError
from protlat.files import atomic_path
from protlat.reporting import Progress, current_memory_bytes, format_count, progress
from protlat.training.checkpoint import STATE, CheckpointConfig, CheckpointStore
from protlat.training.engine import Process
from protlat.training.label_data import LabelBatch, LabelDataset
from protlat.training.label_loss import LabelLoss
from protlat.training.metrics import MetricsLog
from protlat.training.optim import ScheduleConfig
from protlat.training.state import gather_weights
from protlat.training.stopping import StopRequest

log = logging.getLogger(__name__)
_PREFETCH = 4


@dataclass
class LabelState:
    """Where a run stands; everything but weights, moments and random generators."""

    step: int = 0
    position: Position = field(default_factory=Position)
    n_tokens: int = 0
    elapsed_s: float = 0.0
    best_score: float | None = None
    best_step: int = 0
    n_without: int = 0
    """Evaluations since the best one."""

    def to_plain(self) -> dict[str, Any]:
        return {**self.__dict__, "position": {"epoch": self.position.epoch, "batch": self.position.batch}}

    @staticmethod
    def from_plain(values: dict[str, Any]) -> LabelState:
        known = {name: values[name] for name in LabelState.__dataclass_fields__}
        return LabelState(**{**known, "position": Position(**values["position"])})


@dataclass(frozen=True)
class LabelLimits:
    """When a run ends.

    Attributes
    ----------
    max_steps : int
    evaluate_every : int
        Steps between two evaluations.
    patience : int
        Evaluations without a better score after which a run ends.
    """

    max_steps: int
    evaluate_every: int
    patience: int


@dataclass(frozen=True)
class LabelParts:
    """What a loop works with."""

    process: Process
    engine: Any
    train: LabelDataset
    plan: BatchPlan
    loss: LabelLoss
    evaluate: Callable[[Any], tuple[float, dict[str, Any]]] | None
    """Scores the engine's model on the validation split: a number of which more is better, and what else to record."""
    store: CheckpointStore
    metrics: MetricsLog | None
    """None on every rank but the first."""


@dataclass(frozen=True)
class LabelSettings:
    """What a loop obeys."""

    lr: float
    schedule: ScheduleConfig
    limits: LabelLimits
    accumulate: int
    checkpoints: CheckpointConfig


class LabelLoop:
    """Runs steps until a limit, a signal or a fault; keeps the weights of the best evaluation.

    Every evaluation with a better score writes its weights to ``best/`` and then a checkpoint that names them, so that a
    run that is killed at any moment goes on to the same end.
    """

    def __init__(self, parts: LabelParts, settings: LabelSettings, state: LabelState) -> None:
        self.parts, self.settings, self.state = parts, settings, state
        self.stopped_by: signal.Signals | None = None
        self._group = settings.accumulate * parts.process.world_size
        self._base_elapsed_s = state.elapsed_s
        self._start_s = self._saved_s = time.monotonic()
        self._best_folder = parts.store.folder.parent / "best"

    def run(self) -> None:
        """Train to the end.

        Raises
        ------
        TrainingError
            A loss or gradient that is not a number.
        """
        parts, state = self.parts, self.state
        parts.engine.train()
        left = self.settings.limits.max_steps - state.step
        with StopRequest() as request, self._batches() as batches, progress("finetune", max(left, 0), "steps") as line:
            while not self.is_finished:
                start_s, waited_s = time.perf_counter(), batches.wait_s
                group = [next(batches) for _ in range(self.settings.accumulate)]
                amounts = [parts.loss.amount(batch.labels) for batch in group]
                stops = [float(request.signal == kind) for kind in (signal.SIGINT, signal.SIGTERM)]
                counts = [sum(amounts), float(sum(batch.n_tokens for batch in group))]
                amount, n_tokens, n_int, n_term = parts.process.sum([*counts, *stops])
                if n_int or n_term:
                    self.stopped_by = signal.SIGINT if n_int else signal.SIGTERM
                    break
                row = self._step(group, amount, int(n_tokens))
                row |= {"wait_s": batches.wait_s - waited_s, "tokens_per_s": n_tokens / (time.perf_counter() - start_s)}
                self._record(row, line)
                self._between_steps()
        self.save()

    @property
    def is_finished(self) -> bool:
        limits, state = self.settings.limits, self.state
        return state.step >= limits.max_steps or state.n_without >= limits.patience

    def best_weights(self) -> dict[str, torch.Tensor]:
        """Trained weights of the best evaluation, or of the last step where there is no validation; every rank must call."""
        if self.state.best_step == 0:
            return gather_weights(self.parts.engine)
        from safetensors.torch import load_file

        path = self._best_path(self.state.best_step)
        if not path.is_file():
            raise CheckpointError(f"{path}: the best weights are missing; start the run again with --overwrite")
        return load_file(path)

    def save(self) -> None:
        """Write a checkpoint of the present state, unless nothing has been learned yet."""
        if self.state.step:
            state = {**self.state.to_plain(), "elapsed_s": self._elapsed_s()}
            self.parts.store.save(self.parts.engine, self.parts.process, state)
            if self.parts.process.is_first:
                self._drop_unnamed()
        self._saved_s = time.monotonic()

    def _elapsed_s(self) -> float:
        return self._base_elapsed_s + time.monotonic() - self._start_s

    def _batches(self) -> Prefetcher[LabelBatch]:
        parts, start = self.parts, self.state.position

        def make() -> Iterator[LabelBatch]:
            for _, picks in parts.plan.walk(start, parts.process.rank, parts.process.world_size):
                yield parts.train.batch(picks)

        return Prefetcher(make, _PREFETCH)

    def _step(self, group: list[LabelBatch], amount: float, n_tokens: int) -> dict[str, Any]:
        parts, state, settings = self.parts, self.state, self.settings
        engine, process = parts.engine, parts.process
        rate = settings.lr * settings.schedule.factor((state.step + 0.5) / settings.limits.max_steps)
        for param_group in engine.optimizer.param_groups:
            param_group["lr"] = rate * param_group.get("lr_ratio", 1.0)
        # DeepSpeed averages over batches and ranks; scaled like this, that average is the mean over the step's labels.
        scale = self._group / max(amount, 1e-9)
        total = 0.0
        culprit: LabelBatch | None = None
        for batch in group:
            here = batch.to(process.device)
            loss = parts.loss(engine(here.inputs, here.segments), here.labels)
            value = loss.item()
            if not math.isfinite(value):
                culprit = batch
            total += value
            engine.backward(loss * scale)
            if batch is group[-1]:
                [total] = process.sum([total])
                if not math.isfinite(total):
                    self._fail(total, culprit)
            engine.step()
        norm = engine.get_global_grad_norm()
        state.step += 1
        state.position = parts.plan.advance(state.position, self._group)
        state.n_tokens += n_tokens
        state.elapsed_s = self._elapsed_s()
        return {"loss": total / max(amount, 1e-9), "lr": rate, "grad_norm": None if norm is None else float(norm)}

    def _fail(self, total: float, culprit: LabelBatch | None) -> None:
        error: TrainingError | None = None
        if culprit is not None:
            names = [self.parts.train.split.names[row] for row in culprit.rows]
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            error = TrainingError(
                f"step {self.state.step + 1}: the loss is {total} in a batch of {shown}; try a lower optim.lr or engine.dtype=float32"
            )
        self.parts.process.raise_together(error)

    def _record(self, row: dict[str, Any], line: Progress) -> None:
        state = self.state
        if self.parts.metrics is not None:
            self.parts.metrics.write(
                {
                    "kind": "train",
                    "step": state.step,
                    "epoch": state.position.epoch,
                    "tokens": state.n_tokens,
                    **row,
                    "memory_bytes": current_memory_bytes(),
                    "wall_s": self._elapsed_s(),
                }
            )
        best = "" if state.best_score is None else f", best {state.best_score:.4f}"
        line.advance(1.0, f"loss {row['loss']:.3f}{best}, {format_count(row['tokens_per_s'])} tokens/s")

    def _between_steps(self) -> None:
        state, limits = self.state, self.settings.limits
        if state.step % limits.evaluate_every == 0 or state.step >= limits.max_steps:
            self._evaluate()
        checkpoints = self.settings.checkpoints
        due = checkpoints.every_steps is not None and state.step % checkpoints.every_steps == 0
        if checkpoints.every_minutes is not None:
            late = time.monotonic() - self._saved_s >= 60 * checkpoints.every_minutes
            due = due or self.parts.process.sum([float(late and self.parts.process.is_first)])[0] > 0
        if due:
            self.save()

    def _evaluate(self) -> None:
        parts, state = self.parts, self.state
        if parts.evaluate is None:
            return
        value, facts = parts.evaluate(parts.engine)
        better = math.isfinite(value) and (state.best_score is None or value > state.best_score)
        state.n_without = 0 if better else state.n_without + 1
        if better:
            state.best_score, state.best_step = value, state.step
            self._keep_best()
        if parts.metrics is not None:
            row = {"kind": "eval", "step": state.step, "tokens": state.n_tokens, **facts, "best": better}
            parts.metrics.write({**row, "wall_s": self._elapsed_s()})
            shown = ", ".join(f"{key} {item:.4f}" for key, item in facts.items() if isinstance(item, float))
            log.info("step %d: validation %s%s", state.step, shown, " (best so far)" if better else "")
        if better:
            self.save()

    def _best_path(self, step: int) -> Path:
        return self._best_folder / f"step-{step:010d}.safetensors"

    def _keep_best(self) -> None:
        from safetensors.torch import save_file

        weights = gather_weights(self.parts.engine, self.parts.process.is_first)
        if self.parts.process.is_first:
            with atomic_path(self._best_path(self.state.best_step)) as temporary:
                save_file(weights, temporary)
        self.parts.process.barrier()

    def _drop_unnamed(self) -> None:
        """Delete best weights that no checkpoint names any more."""
        named = {
            json.loads((folder / STATE).read_text(encoding="utf-8"))["best_step"] for folder in self.parts.store.all()
        }
        for path in self._best_folder.glob("step-*.safetensors"):
            if path not in {self._best_path(step) for step in named}:
                path.unlink()
