"""The training loop: steps, and what happens between them."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field

from protlat.config import Config
from protlat.data.batch import TrainingBatch
from protlat.data.batching import BatchPlan, Position, Prefetcher
from protlat.data.dataset import MaskedDataset
from protlat.data.lanes import LanePlan
from protlat.data.next_token import NextTokenDataset
from protlat.errors import TrainingError
from protlat.reporting import Progress, current_memory_bytes, format_count, progress
from protlat.training.carry import CarriedStates
from protlat.training.checkpoint import CheckpointConfig, CheckpointStore
from protlat.training.engine import Process
from protlat.training.evaluation import EvaluationConfig, Validator
from protlat.training.metrics import MetricsLog
from protlat.training.optim import ScheduleConfig
from protlat.training.report import describe_scores
from protlat.training.stopping import StopRequest

log = logging.getLogger(__name__)


class LimitsConfig(Config):
    """When a run ends: at the first of the limits given. With none given, after one epoch."""

    max_steps: int | None = Field(None, ge=1)
    """Optimiser steps."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the training split."""
    max_tokens: int | None = Field(None, ge=1)
    """Tokens read over all ranks, specials included."""
    max_minutes: float | None = Field(None, gt=0)
    """Minutes of training over all sessions; the schedule then follows the clock, so a resumed run is not bit-exact."""


class GuardConfig(Config):
    """When a run is stopped because it has gone wrong."""

    max_grad_norm: float = Field(1000.0, gt=0)
    """Gradient norm, before clipping, that counts as an explosion."""
    patience: int = Field(10, ge=1)
    """Steps in a row above `max_grad_norm` after which the run stops."""


@dataclass
class RunState:
    """Where a run stands; everything but weights, moments and random generators."""

    step: int = 0
    position: Position = field(default_factory=Position)
    n_tokens: int = 0
    n_predicted: int = 0
    elapsed_s: float = 0.0
    n_exploded: int = 0

    def to_plain(self) -> dict[str, Any]:
        position = {"epoch": self.position.epoch, "batch": self.position.batch}
        return {**self.__dict__, "position": position}

    @staticmethod
    def from_plain(values: dict[str, Any]) -> RunState:
        # Checkpoints of earlier versions, which knew masked models only.
        values = {"n_predicted": values.get("n_masked"), **values}
        known = {name: values[name] for name in RunState.__dataclass_fields__}
        return RunState(**{**known, "position": Position(**values["position"])})


@dataclass(frozen=True)
class Parts:
    """What a loop works with."""

    process: Process
    engine: Any
    dataset: MaskedDataset | NextTokenDataset
    plan: BatchPlan | LanePlan
    validator: Validator | None
    floors: dict[str, Any] | None
    store: CheckpointStore
    metrics: MetricsLog | None
    """None on every rank but the first."""
    carried: CarriedStates | None = None
    """States of the lanes (`batching.long: carry`)."""


@dataclass(frozen=True)
class Settings:
    """What a loop obeys."""

    lr: float
    schedule: ScheduleConfig
    limits: LimitsConfig
    """With `max_steps` set where epochs were given."""
    accumulate: int
    prefetch: int
    checkpoints: CheckpointConfig
    evaluation: EvaluationConfig
    guard: GuardConfig


class Loop:
    """Runs steps until a limit, a signal or a fault."""

    def __init__(self, parts: Parts, settings: Settings, state: RunState) -> None:
        self.parts, self.settings, self.state = parts, settings, state
        self.stopped_by: signal.Signals | None = None
        self.final_scores: dict[str, Any] | None = None
        self._group = settings.accumulate * parts.process.world_size
        self._base_elapsed_s = state.elapsed_s
        self._start_s = self._saved_s = time.monotonic()
        self._step_start_s = time.perf_counter()

    def run(self) -> None:
        """Train to the end, evaluate, and leave a checkpoint.

        Raises
        ------
        TrainingError
            A loss or gradient that is not a number, or gradients that explode; the state before it is saved.
        """
        parts, state = self.parts, self.state
        parts.engine.train()
        with StopRequest() as request, self._batches() as batches, self._progress() as line:
            while not self._finished():
                self._step_start_s = time.perf_counter()
                waited_before_s = batches.wait_s
                group = [next(batches) for _ in range(self.settings.accumulate)]
                wait_s = batches.wait_s - waited_before_s
                counts = [float(sum(b.n_predicted for b in group)), float(sum(b.n_tokens for b in group))]
                # The clock and the signals of one rank decide for all.
                elapsed_s = self._elapsed_s() if parts.process.is_first else 0.0
                stops = [float(request.signal == kind) for kind in (signal.SIGINT, signal.SIGTERM)]
                n_predicted, n_tokens, elapsed_s, n_int, n_term = parts.process.sum([*counts, elapsed_s, *stops])
                if n_int or n_term:
                    self.stopped_by = signal.SIGINT if n_int else signal.SIGTERM
                    break
                state.elapsed_s = elapsed_s
                self._step(group, n_predicted, n_tokens, wait_s, line)
                self._between_steps()
        # Before the long evaluation, so that a kill in the middle of it loses nothing.
        self.save()
        if self.stopped_by is None:
            self._evaluate(whole=True)

    def save(self, prune: bool = True) -> None:
        """Write a checkpoint of the present state, unless nothing has been learned yet."""
        if self.state.step:
            # The clock goes into the file only: in `state`, where limits are read, all ranks hold the first one's.
            state = {**self.state.to_plain(), "elapsed_s": self._elapsed_s()}
            carried = None if self.parts.carried is None else self.parts.carried.tensors()
            self.parts.store.save(self.parts.engine, self.parts.process, state, prune, carried)
        self._saved_s = time.monotonic()

    def _elapsed_s(self) -> float:
        return self._base_elapsed_s + time.monotonic() - self._start_s

    def _batches(self) -> Prefetcher[TrainingBatch]:
        parts, start = self.parts, self.state.position

        def make() -> Iterator[TrainingBatch]:
            for epoch, picks in parts.plan.walk(start, parts.process.rank, parts.process.world_size):
                yield parts.dataset.batch(picks, epoch)  # type: ignore[arg-type]  # the plan is made for the dataset

        return Prefetcher(make, self.settings.prefetch)

    def _finished(self) -> bool:
        return is_finished(self.settings.limits, self.state)

    def done(self, n_tokens: float) -> float:
        """Share of the run that is done at the middle of the coming step, by the limit that is nearest."""
        limits, state = self.settings.limits, self.state
        shares = [0.0]
        if limits.max_steps is not None:
            shares.append((state.step + 0.5) / limits.max_steps)
        if limits.max_tokens is not None:
            shares.append((state.n_tokens + n_tokens / 2) / limits.max_tokens)
        if limits.max_minutes is not None:
            shares.append(state.elapsed_s / (60 * limits.max_minutes))
        return max(shares)

    def _step(
        self, group: list[TrainingBatch], n_predicted: float, n_tokens: float, wait_s: float, line: Progress
    ) -> None:
        parts, state = self.parts, self.state
        engine, process = parts.engine, parts.process
        lr = self.settings.lr * self.settings.schedule.factor(self.done(n_tokens))
        for param_group in engine.optimizer.param_groups:
            param_group["lr"] = lr * param_group.get("lr_ratio", 1.0)
        # DeepSpeed averages over batches and ranks; scaled like this, that average is the mean over the step's
        # predictions, however they are dealt.
        scale = self._group / max(n_predicted, 1.0)
        nll_sum = 0.0
        culprit: TrainingBatch | None = None
        for number, batch in enumerate(group):
            here = batch.to(process.device)
            memory = None if parts.carried is None else parts.carried.before(number, here)
            logits = engine(here.tokens, here.segments, here.at, memory)
            nll = F.cross_entropy(logits, here.targets, reduction="sum")
            if parts.carried is not None and memory is not None:
                parts.carried.stage(number, here, memory)
            engine.backward(nll * scale)
            value = nll.item()
            nll_sum += value
            if culprit is None and not math.isfinite(value):
                culprit = batch
            if number == len(group) - 1:
                [total] = process.sum([nll_sum])
                loss = total / max(n_predicted, 1.0)
                plain_norm = _gradient_norm(engine)
                if not math.isfinite(loss):
                    self._fail_nan(f"the loss is {loss}", culprit)
            engine.step()
        reported = engine.get_global_grad_norm()
        norm = float(reported) if reported is not None else plain_norm
        # DeepSpeed reports -1 where a gradient is not a number.
        if not math.isfinite(norm) or norm < 0:
            raise TrainingError(
                f"step {state.step + 1}: the gradient norm is {norm} though the loss is {loss:.4f}; {self._advice(saved=False)}"
            )
        if parts.carried is not None:
            parts.carried.commit()
        state.step += 1
        state.position = parts.plan.advance(state.position, self._group)
        state.n_tokens += int(n_tokens)
        state.n_predicted += int(n_predicted)
        if parts.metrics is not None:
            self._record(loss, lr, norm, int(n_tokens), wait_s, line)
        self._guard(norm)

    def _record(self, loss: float, lr: float, norm: float, n_tokens: int, wait_s: float, line: Progress) -> None:
        state = self.state
        assert self.parts.metrics is not None
        seconds = time.perf_counter() - self._step_start_s
        row = {
            "kind": "train",
            "step": state.step,
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "epoch": state.position.epoch,
            "tokens": state.n_tokens,
            "tokens_per_s": n_tokens / seconds,
            "wait_s": wait_s,
            "memory_bytes": _memory_bytes(self.parts.process.device),
            "wall_s": self._elapsed_s(),
        }
        self.parts.metrics.write(row)
        limits = self.settings.limits
        amount = 1.0 if limits.max_steps else float(n_tokens) if limits.max_tokens else seconds
        line.advance(amount, f"loss {loss:.3f}, {format_count(n_tokens / seconds)} tokens/s")

    def _progress(self) -> Any:
        limits, state = self.settings.limits, self.state
        if limits.max_steps is not None:
            return progress("pretrain", limits.max_steps - state.step, "steps")
        if limits.max_tokens is not None:
            return progress("pretrain", limits.max_tokens - state.n_tokens, "tokens")
        assert limits.max_minutes is not None
        return progress("pretrain", max(60 * limits.max_minutes - state.elapsed_s, 1.0), "seconds")

    def _guard(self, norm: float) -> None:
        guard, state = self.settings.guard, self.state
        state.n_exploded = state.n_exploded + 1 if norm > guard.max_grad_norm else 0
        if state.n_exploded >= guard.patience:
            raise TrainingError(
                f"step {state.step}: exploding gradient: its norm was above {guard.max_grad_norm:g} "
                f"(guard.max_grad_norm) for {state.n_exploded} steps, last {norm:.3g}; {self._advice(saved=False)}"
            )

    def _fail_nan(self, what: str, culprit: TrainingBatch | None) -> None:
        """Name the sequences on the rank that has them, save the state from before this step, and stop every rank."""
        state, process = self.state, self.parts.process
        error: TrainingError | None = None
        # Weights may have been on their way to infinity for some steps: the older checkpoints all stay.
        self.save(prune=False)
        if culprit is not None:
            names = [self.parts.dataset.source.id(int(index)) for index in culprit.indices]
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            error = TrainingError(
                f"step {state.step + 1}: {what} on rank {process.rank}, in a batch of {shown}; "
                f"{self._advice(saved=state.step > 0)}"
            )
        process.raise_together(error)

    def _advice(self, saved: bool) -> str:
        kept = self.parts.store.all()
        if saved:
            where = f"the state before this step is kept in {kept[0]}"
            if len(kept) > 1:
                where += f" (delete it to resume from {kept[1].name})"
        else:
            where = f"the newest checkpoint is {kept[0]}" if kept else "there is no checkpoint yet"
        return f"{where}; try a lower optim.lr, a longer schedule.warmup or engine.dtype=float32"

    def _between_steps(self) -> None:
        settings, state = self.settings, self.state
        if state.step % settings.evaluation.every_steps == 0 and not self._finished():
            self._evaluate(whole=False)
        checkpoints = settings.checkpoints
        due = checkpoints.every_steps is not None and state.step % checkpoints.every_steps == 0
        if checkpoints.every_minutes is not None:
            late = time.monotonic() - self._saved_s >= 60 * checkpoints.every_minutes
            due = due or self.parts.process.sum([float(late and self.parts.process.is_first)])[0] > 0
        if due:
            self.save()

    def _evaluate(self, whole: bool) -> None:
        parts, state = self.parts, self.state
        if parts.validator is None:
            return
        scores = parts.validator.score(parts.engine, parts.process, whole)
        row = {"kind": "eval", "step": state.step, "whole": whole, "tokens": state.n_tokens, **scores}
        floors = None if parts.floors is None else parts.floors["whole" if whole else "short"]
        for name, score in (floors or {}).items():
            row[f"floor_{name}"] = score["perplexity"]
            row |= {f"floor_{name}_{key}": value for key, value in score.items() if key.startswith("bits_per_")}
        row["wall_s"] = self._elapsed_s()
        if whole:
            self.final_scores = row
        if parts.metrics is not None:
            parts.metrics.write(row)
            log.info("step %d: validation %s", state.step, describe_scores(row))


def resolve_limits(limits: LimitsConfig, plan: BatchPlan | LanePlan, batches_per_step: int) -> LimitsConfig:
    """Limits with epochs turned into steps; one epoch when there is no limit at all.

    The last step of a run of whole epochs may read a few batches of the next one, so that none is left out.
    """
    epochs = limits.epochs
    if epochs is None and limits.max_steps is None and limits.max_tokens is None and limits.max_minutes is None:
        epochs = 1.0
    if epochs is None:
        return limits
    whole = math.floor(epochs)
    n_batches = sum(plan.n_batches(epoch) for epoch in range(whole))
    if epochs > whole:
        n_batches += math.ceil((epochs - whole) * plan.n_batches(whole))
    steps = -(-n_batches // batches_per_step)
    if limits.max_steps is not None:
        steps = min(steps, limits.max_steps)
    return limits.model_copy(update={"max_steps": steps, "epochs": None})


def is_finished(limits: LimitsConfig, state: RunState) -> bool:
    """Whether a run has reached one of its limits."""
    return (
        (limits.max_steps is not None and state.step >= limits.max_steps)
        or (limits.max_tokens is not None and state.n_tokens >= limits.max_tokens)
        or (limits.max_minutes is not None and state.elapsed_s >= 60 * limits.max_minutes)
    )


def _gradient_norm(engine: Any) -> float:
    """Norm of the gradients where DeepSpeed does not report it (stage 0), else not a number."""
    gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
    if not gradients or engine.zero_optimization_stage() > 0:
        return math.nan
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.float()) for g in gradients])))


def _memory_bytes(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else current_memory_bytes()
