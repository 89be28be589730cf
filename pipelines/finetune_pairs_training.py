"""The part of `protlat finetune` that trains a contact head on frozen vectors of residues."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from protlat.data.random_streams import Purpose, stream
from protlat.errors import CheckpointError
from protlat.evaluation.contacts import ContactMetric, split_precisions
from protlat.files import require_disk_space
from protlat.inference.contacts import ContactPredictor
from protlat.inference.feature_cache import FeatureCache, Ragged, default_cache, statistics
from protlat.models.contact_head import ContactHead
from protlat.reporting import format_seconds
from protlat.tasks.data import TRAIN, VALID, LabelledSplit, PairTarget, TaskData
from protlat.tasks.pairs import separation_prior
from protlat.training.checkpoint import Checkpoint, CheckpointStore, checkpoint_bytes
from protlat.training.engine import Process, build_engine, deepspeed_dict, start_process
from protlat.training.label_loop import LabelLimits, LabelLoop, LabelParts, LabelSettings, LabelState
from protlat.training.label_optim import make_label_optimizer
from protlat.training.metrics import MetricsLog
from protlat.training.pair_data import PairDataset, PairLoss, PairPlan, PairTrainer, one_hot
from protlat.training.state import restore_state

from .finetune_config import FinetuneConfig
from .finetune_pairs_config import PairConfig

log = logging.getLogger(__name__)
_EPOCHS, _LR = 8.0, 2e-3
Features = dict[str, Ragged | None]
# Claims the folder of the run on the first rank, before anything is written; told what the session is.
Claim = Callable[[Process, dict[str, Any]], None]


@dataclass(frozen=True)
class TrainedPairs:
    """What training has made.

    Attributes
    ----------
    head : ContactHead
        With the best weights, float32, in evaluation mode.
    course : dict
        Steps, time and more, for the report.
    stopped_by : int or None
        Number of the signal that ended it early.
    is_first : bool
        Whether this is the process that writes.
    """

    head: ContactHead
    course: dict[str, Any]
    stopped_by: int | None
    is_first: bool


class PairTraining:
    """Trains heads of one task on one model.

    Parameters
    ----------
    config : FinetuneConfig
    data : TaskData
    model_folder : Path
    metrics : sequence of ContactMetric
        The first decides which weights are kept.
    """

    def __init__(
        self, config: FinetuneConfig, data: TaskData, model_folder: Path, metrics: Sequence[ContactMetric]
    ) -> None:
        self.config, self.data, self.model_folder, self.metrics = config, data, model_folder, tuple(metrics)

    def features(self, reads: str) -> Features:
        """Frozen vectors of every split; None where residues stand for themselves."""
        if reads == "one_hot":
            return dict.fromkeys(self.data.splits)
        config = self.config
        cache = FeatureCache(
            config.cache or default_cache(),
            self.model_folder,
            config.engine.dtype,
            config.engine.device,
            layer=config.layer,
        )
        return {name: cache.residues(split) for name, split in self.data.splits.items()}

    def train(self, pair: PairConfig, output: Path, claim: Claim | None = None) -> TrainedPairs:
        """Train one head in a folder of its own; every process of the run calls it."""
        config = self.config
        # Little would be gained by bfloat16, whose rounding the pooled state and the prior would feel.
        engine_config = config.engine.model_copy(
            update={"dtype": "float32" if config.engine.dtype == "auto" else config.engine.dtype}
        )
        process = start_process(engine_config)
        ds_config = deepspeed_dict(engine_config, process.dtype, process.world_size)
        store = CheckpointStore(output / "checkpoints", config.checkpoints.keep)
        if claim is not None:
            claim(process, ds_config)
        if process.is_first:
            output.mkdir(parents=True, exist_ok=True)
        checkpoint = self._checkpoint(process, store)
        features = self.features(pair.reads)
        trainer, fresh = (self._build(pair, features) for _ in range(2))
        train_set = PairDataset(
            self.data.splits[TRAIN], features[TRAIN], pair.head.edges_angstrom, pair.crop, pair.crops, config.seed
        )
        plan = PairPlan(np.ones(len(train_set), np.int64), pair.chains_per_batch, config.seed)
        limits = self._limits(-(-plan.n_batches(0) // (engine_config.accumulate * process.world_size)))
        n_parameters = sum(p.numel() for p in trainer.parameters())
        state = LabelState()
        if checkpoint is not None:
            trainer.load_state_dict(checkpoint.weights(), strict=False)
            state = LabelState.from_plain(checkpoint.state)
        optim = config.optim.model_copy(update={"lr": config.optim.lr or _LR, "encoder_lr": config.optim.lr or _LR})
        engine = build_engine(trainer, make_label_optimizer(trainer, optim), ds_config)
        torch.manual_seed(int(stream(config.seed, Purpose.DROPOUT, index=process.rank).integers(2**63 - 1)))
        if checkpoint is not None:
            _restore(engine, checkpoint, process)
        if process.is_first:
            require_disk_space(
                output, (config.checkpoints.keep + 2) * checkpoint_bytes(n_parameters), "the run's checkpoints"
            )
            log.info(
                "%s: %s parameters on %s in %s; %d training chains in %d batches an epoch; at most %d steps",
                output, f"{n_parameters:,}", process.device, str(process.dtype).removeprefix("torch."), len(train_set),
                plan.n_batches(0), limits.max_steps,
            )  # fmt: skip
        metrics = MetricsLog(output, state.step) if process.is_first else None
        assert optim.lr is not None
        parts = LabelParts(
            process,
            engine,
            cast(Any, train_set),
            plan,
            cast(Any, PairLoss()),
            self._evaluation(features),
            store,
            metrics,
        )
        settings = LabelSettings(optim.lr, config.schedule, limits, engine_config.accumulate, config.checkpoints)
        loop = LabelLoop(parts, settings, state)
        try:
            loop.run()
        finally:
            if metrics is not None:
                metrics.close()
        if loop.stopped_by is None:
            fresh.load_state_dict(loop.best_weights(), strict=False)
        course = {
            "steps": state.step,
            "best step": state.best_step or state.step,
            "epochs": round(state.position.epoch + state.position.batch / plan.n_batches(0), 2),
            "ended": "no better score" if state.n_without >= limits.patience else "all steps done",
            "trained parameters": n_parameters,
            "time": format_seconds(state.elapsed_s),
            "device": str(process.device),
            "dtype": str(process.dtype).removeprefix("torch."),
            "processes": process.world_size,
        }
        head = cast(ContactHead, fresh.head)
        stopped_by = None if loop.stopped_by is None else int(loop.stopped_by)
        return TrainedPairs(head.to(process.device).eval(), course, stopped_by, process.is_first)

    def _checkpoint(self, process: Process, store: CheckpointStore) -> Checkpoint | None:
        """The checkpoint to go on from, if any."""
        if not self.config.resume:
            return None
        if process.is_first:
            store.clear_unfinished()
        process.barrier()
        if not store.all():
            log.warning("%s: stopped before its first checkpoint; training begins anew", store.folder.parent)
            return None
        return store.newest()

    def _build(self, pair: PairConfig, features: Features) -> PairTrainer:
        """A head with starting weights, inputs scaled and the frequencies of distances told."""
        torch.manual_seed(self.config.seed)
        vectors = features[TRAIN]
        d_input = one_hot(np.zeros(1, np.int64)).shape[1] if vectors is None else vectors.rows.shape[1]
        head = ContactHead(pair.head, d_input)
        if vectors is not None:
            head.residues.set_input(*statistics(vectors, seed=self.config.seed))
        prior = separation_prior(targets_of(self.data.splits[TRAIN]), pair.head.edges_angstrom)
        head.prior.copy_(torch.from_numpy(prior))
        return PairTrainer(head)

    def _limits(self, steps_per_epoch: int) -> LabelLimits:
        limits = self.config.limits
        steps = limits.max_steps
        if steps is None:
            least = limits.min_steps if limits.epochs is None else 1
            steps = max(math.ceil((limits.epochs or _EPOCHS) * steps_per_epoch), least)
        return LabelLimits(steps, limits.evaluate_every or min(max(steps_per_epoch, 20), 500), limits.patience)

    def _evaluation(self, features: Features) -> Callable[[Any], tuple[float, dict[str, Any]]] | None:
        """A function that scores an engine on the validation split; None where there is none."""
        split = self.data.splits.get(VALID)
        if split is None or not len(split):
            log.warning(
                "task %s has no validation split: all steps are done and the last weights are kept", self.data.name
            )
            return None
        targets, vectors = targets_of(split), features[VALID]

        def evaluate(engine: Any) -> tuple[float, dict[str, Any]]:
            engine.eval()
            predictor = ContactPredictor(engine.module.head)
            maps = (predictor.logits(vectors_of(split, vectors, i), target.index) for i, target in enumerate(targets))
            found = split_precisions(maps, targets, self.metrics)
            engine.train()
            facts: dict[str, Any] = {name: _mean(values) for name, values in found.items()}
            value = facts[self.metrics[0].name]
            return (math.nan if value is None else value), {"score": value, "metric": self.metrics[0].name, **facts}

        return evaluate


def targets_of(split: LabelledSplit) -> tuple[PairTarget, ...]:
    """Coordinates of the chains of a split."""
    return cast(tuple[PairTarget, ...], split.labels)


def vectors_of(split: LabelledSplit, features: Ragged | None, row: int) -> np.ndarray:
    """Vectors of a chain, (L, E): stored ones, or residues for themselves."""
    return one_hot(split.ids[row]) if features is None else features[row]


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _restore(engine: Any, checkpoint: Checkpoint, process: Process) -> None:
    weights, moments = checkpoint.weights(), checkpoint.moments()
    if missing := [name for name, _ in engine.module.named_parameters() if name not in weights]:
        raise CheckpointError(
            f"{checkpoint.folder}: its weights are not those of this run: {', '.join(missing[:5])} missing"
        )
    restore_state(engine, weights.__getitem__, moments.__getitem__, int(checkpoint.state["optimizer_steps"]))
    checkpoint.restore_random_state(process.rank)
    if process.is_first:
        log.info("resuming from %s (step %d)", checkpoint.folder, checkpoint.step)
