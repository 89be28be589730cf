"""The part of `protlat finetune` that trains a network: head alone on frozen vectors, adapters, or everything."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protlat.data.random_streams import Purpose, stream
from protlat.errors import CheckpointError, ProtlatError
from protlat.evaluation.scores import metric, score
from protlat.files import require_disk_space
from protlat.inference.feature_cache import Ragged, statistics
from protlat.models import Encoder
from protlat.models.head_file import HeadFile
from protlat.models.label_model import LabelModel, train_only_reached
from protlat.nn.heads import LabelHead, needs_residues
from protlat.nn.lora import add_lora, merge_lora
from protlat.reporting import format_seconds
from protlat.tasks.data import TRAIN, VALID, LabelledSplit, TaskData
from protlat.training.checkpoint import Checkpoint, CheckpointStore, checkpoint_bytes
from protlat.training.engine import Process, build_engine, deepspeed_dict, launch_variables, start_process
from protlat.training.label_data import LabelDataset, class_counts
from protlat.training.label_loop import LabelLimits, LabelLoop, LabelParts, LabelSettings, LabelState
from protlat.training.label_loss import LabelLoss, balanced_weights, prior_outputs
from protlat.training.label_optim import make_label_optimizer
from protlat.training.metrics import MetricsLog
from protlat.training.state import restore_state

from .finetune_config import FinetuneConfig
from .finetune_report import prediction_for

if TYPE_CHECKING:
    from .finetune import _Run

log = logging.getLogger(__name__)
_EPOCHS = {"head": 30.0, "lora": 15.0, "full": 15.0}
# Sequences from which mean and spread of the vectors are taken where no vectors are stored.
_STATISTICS_SEQUENCES = 200
Features = dict[str, Ragged | np.ndarray]


@dataclass(frozen=True)
class Trained:
    """What training has made.

    Attributes
    ----------
    head : LabelHead
        With the best weights, float32.
    encoder : Encoder or None
        With its best weights, adapters merged in; None where it was frozen.
    features : dict
        Frozen vectors by split; empty where the encoder was trained.
    course : dict
        Steps, time and more, for the report.
    state : LabelState
    stopped_by : signal.Signals or None
    is_first : bool
        Whether this is the process that writes.
    """

    head: LabelHead
    encoder: Encoder | None
    features: Features
    course: dict[str, Any]
    state: LabelState
    stopped_by: signal.Signals | None
    is_first: bool


def train(run: _Run, config: FinetuneConfig, data: TaskData) -> Trained:
    """Train, or go on with a run that was stopped; every process of the run calls it."""
    with launch_variables():
        return _train(run, config, data)


def _train(run: _Run, config: FinetuneConfig, data: TaskData) -> Trained:
    assert config.head is not None
    assert config.tokens_per_batch is not None
    assert config.optim.lr is not None
    process = start_process(config.engine)
    ds_config = deepspeed_dict(config.engine, process.dtype, process.world_size)
    store = CheckpointStore(run.output / "checkpoints", config.checkpoints.keep)
    checkpoint = _claimed(run, config, process, store, ds_config)
    features: Features = {}
    if config.mode == "head":
        features = run.features(needs_residues(config.head, data.is_per_residue))
    model, fresh = build_model(run, config, data, features)
    loss = LabelLoss(data.type, _class_weights(run, data))
    scaling = (run.head_file({}).value_mean, run.head_file({}).value_scale)
    train_set = LabelDataset(data.type, data.splits[TRAIN], features.get(TRAIN), run.alphabet, scaling)
    plan = train_set.plan(config.tokens_per_batch, config.seed, shuffle=True)
    group = config.engine.accumulate * process.world_size
    limits = limits_of(config, -(-plan.n_batches(0) // group))
    n_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if process.is_first:
        require_disk_space(
            run.output, (config.checkpoints.keep + 2) * checkpoint_bytes(n_trained), "the run's checkpoints"
        )
        log.info(
            "%s of %s parameters are trained, on %s in %s; %d training sequences in %d batches an epoch; at most %d steps",
            f"{n_trained:,}", f"{sum(p.numel() for p in model.parameters()):,}", process.device,
            str(process.dtype).removeprefix("torch."), len(train_set), plan.n_batches(0), limits.max_steps,
        )  # fmt: skip
    state = LabelState()
    if checkpoint is not None:
        model.load_state_dict(checkpoint.weights(), strict=False)
        state = LabelState.from_plain(checkpoint.state)
    engine = build_engine(model, make_label_optimizer(model, config.optim), ds_config)
    torch.manual_seed(int(stream(config.seed, Purpose.DROPOUT, index=process.rank).integers(2**63 - 1)))
    if checkpoint is not None:
        _restore(engine, checkpoint, process)
    evaluate = _evaluation(run, config, data, features, process, loss)
    metrics = MetricsLog(run.output, state.step) if process.is_first else None
    settings = LabelSettings(config.optim.lr, config.schedule, limits, config.engine.accumulate, config.checkpoints)
    loop = LabelLoop(LabelParts(process, engine, train_set, plan, loss, evaluate, store, metrics), settings, state)
    try:
        loop.run()
    except BaseException:
        if process.is_first:
            run.folder.set_state("stopped by an error")
        raise
    finally:
        if metrics is not None:
            metrics.close()
    if loop.stopped_by is None:
        # Rounded copies were trained: the float32 weights go into the model that training began with.
        fresh.load_state_dict(loop.best_weights(), strict=False)
        if fresh.encoder is not None:
            merge_lora(fresh.encoder)
    course = {
        "steps": state.step,
        "best step": state.best_step or state.step,
        "epochs": round(state.position.epoch + state.position.batch / plan.n_batches(state.position.epoch), 2),
        "ended": "no better score" if state.n_without >= limits.patience else "all steps done",
        "trained parameters": n_trained,
        "time": format_seconds(state.elapsed_s),
        "device": str(process.device),
        "dtype": str(process.dtype).removeprefix("torch."),
        "processes": process.world_size,
    }
    return Trained(fresh.head, fresh.encoder, features, course, state, loop.stopped_by, process.is_first)


def _claimed(
    run: _Run, config: FinetuneConfig, process: Process, store: CheckpointStore, ds_config: dict[str, Any]
) -> Checkpoint | None:
    """Claim the folder on the first rank; the checkpoint to go on from, if any."""
    error: ProtlatError | None = None
    if process.is_first:
        try:
            run.claim()
            if config.resume:
                store.clear_unfinished()
            dtype = str(process.dtype).removeprefix("torch.")
            run.write_start(
                ds_config, {"world_size": process.world_size, "device": str(process.device), "dtype": dtype}
            )
        except ProtlatError as problem:  # raised again, here, or as an exit elsewhere
            error = problem
    process.raise_together(error)
    if not config.resume:
        return None
    if not store.all():
        log.warning("%s: the run was stopped before its first checkpoint; it begins anew", run.output)
        return None
    return store.newest()


def build_model(run: _Run, config: FinetuneConfig, data: TaskData, features: Features) -> tuple[LabelModel, LabelModel]:
    """The model to train, and its twin in float32 that will take the trained weights."""
    first = _build(run, config, data, features)
    second = _build(run, config, data, features)
    return first, second


def _build(run: _Run, config: FinetuneConfig, data: TaskData, features: Features) -> LabelModel:
    assert config.head is not None
    torch.manual_seed(config.seed)
    head = LabelHead(config.head, run.model_config.d_model, max(len(data.classes), 1), data.is_per_residue)
    train_split = data.splits[TRAIN]
    counts = class_counts(train_split, len(data.classes)) if data.classes else np.zeros(1, np.int64)
    head.set_prior(prior_outputs(counts, data.type, len(train_split), run.is_balanced))
    if config.mode == "head":
        head.set_input(*statistics(features[TRAIN], seed=config.seed))
        return LabelModel(None, head, config.layer)
    encoder = Encoder.from_pretrained(run.model_folder).train()
    model = LabelModel(encoder, head, encoder.resolve_layer(config.layer))
    head.set_input(*_sampled_statistics(run, model, train_split))
    if config.mode == "lora":
        n_adapted = add_lora(encoder, config.lora)
        log.debug("%d layers have adapters", n_adapted)
    train_only_reached(model)
    return model


def _sampled_statistics(run: _Run, model: LabelModel, split: LabelledSplit) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and spread of the vectors before training, over some sequences."""
    from protlat.inference.naming import Column
    from protlat.inference.vectors import Embedder

    assert model.encoder is not None
    rng = np.random.default_rng(run.config.seed)
    rows = np.sort(rng.choice(len(split), min(_STATISTICS_SEQUENCES, len(split)), replace=False))
    column = Column("per_tok", model.layer)
    model.encoder.eval()
    found = Embedder(model.encoder, [column], 8192).run([split.ids[i] for i in rows], [split.names[i] for i in rows])
    vectors = np.concatenate([vectors[column] for _, vectors in sorted(found, key=lambda item: item[0])])
    model.encoder.train()
    return statistics(vectors, seed=run.config.seed)


def _class_weights(run: _Run, data: TaskData) -> torch.Tensor | None:
    if not run.is_balanced or not data.classes:
        return None
    train_split = data.splits[TRAIN]
    return balanced_weights(class_counts(train_split, len(data.classes)), data.type, len(train_split))


def limits_of(config: FinetuneConfig, steps_per_epoch: int) -> LabelLimits:
    """Steps of a run, and how often it is scored."""
    limits = config.limits
    if limits.max_steps is not None:
        steps = limits.max_steps
    elif limits.epochs is not None:
        steps = max(math.ceil(limits.epochs * steps_per_epoch), 1)
    else:
        epochs = math.ceil(_EPOCHS[config.mode] * steps_per_epoch)
        steps = max(min(epochs, limits.most_steps), limits.min_steps)
    every = limits.evaluate_every or min(max(steps_per_epoch, 20), 500)
    return LabelLimits(steps, every, limits.patience)


def _restore(engine: Any, checkpoint: Checkpoint, process: Process) -> None:
    weights, moments = checkpoint.weights(), checkpoint.moments()
    missing = [name for name, p in engine.module.named_parameters() if p.requires_grad and name not in weights]
    if missing:
        raise CheckpointError(
            f"{checkpoint.folder}: its weights are not those of this run: {', '.join(missing[:5])} missing"
        )
    restore_state(engine, weights.__getitem__, moments.__getitem__, int(checkpoint.state["optimizer_steps"]))
    checkpoint.restore_random_state(process.rank)
    if process.is_first:
        log.info("resuming from %s (step %d)", checkpoint.folder, checkpoint.step)


def _evaluation(
    run: _Run, config: FinetuneConfig, data: TaskData, features: Features, process: Process, loss: LabelLoss
) -> Callable[[Any], tuple[float, dict[str, Any]]] | None:
    """A function that scores an engine on the validation split; None where there is none."""
    if VALID not in data.splits or not len(data.splits[VALID]):
        if process.is_first:
            log.warning("task %s has no validation split: all steps are done and the last weights are kept", data.name)
        return None
    assert config.tokens_per_batch is not None
    split, head, name = data.splits[VALID], run.head_file({}), run.metrics[0]
    scaling = (head.value_mean, head.value_scale)
    dataset = LabelDataset(data.type, split, features.get(VALID), run.alphabet, scaling, all_rows=True)
    plan = dataset.plan(config.tokens_per_batch, 0, shuffle=False)
    sign = 1.0 if metric(name).higher_is_better else -1.0
    by_loss = not _is_defined(head, split, name)
    if by_loss and process.is_first:
        log.warning("%s is not defined on the validation split of task %s: its loss decides instead", name, data.name)

    def evaluate(engine: Any) -> tuple[float, dict[str, Any]]:
        engine.eval()
        outputs: list[np.ndarray] = []
        total = amount = 0.0
        with torch.no_grad():
            for picks in plan.once():
                batch = dataset.batch(picks).to(process.device)
                found = engine(batch.inputs, batch.segments)
                total += float(loss(found, batch.labels))
                amount += loss.amount(batch.labels.cpu())
                values = found.float().cpu().numpy() * np.float32(scaling[1]) + np.float32(scaling[0])
                lengths = [len(split.ids[row]) for row in batch.rows]
                outputs += np.split(values, np.cumsum(lengths)[:-1]) if data.is_per_residue else list(values)
        engine.train()
        mean_loss = total / max(amount, 1e-9)
        value = score(name, split.labels, prediction_for(head, outputs, name), n_bootstrap=0).value  # type: ignore[arg-type]  # not of pairs
        facts: dict[str, Any] = {"loss": mean_loss, "score": None if math.isnan(value) else value, "metric": name}
        return (-mean_loss if by_loss else sign * value), facts

    return evaluate


def _is_defined(head: HeadFile, split: LabelledSplit, name: str) -> bool:
    """Whether a metric has a value on a split, whatever is predicted."""
    rng = np.random.default_rng(0)
    n_outputs = max(len(head.classes), 1)
    per_residue = head.type.startswith("residue")
    outputs = [rng.normal(size=(len(ids), n_outputs) if per_residue else n_outputs) for ids in split.ids]
    return not math.isnan(score(name, split.labels, prediction_for(head, outputs, name), n_bootstrap=0).value)  # type: ignore[arg-type]  # not of pairs
