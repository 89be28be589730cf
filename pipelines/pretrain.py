"""From a shard folder to a run folder with a pretrained model."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from protlat.alphabet import Alphabet
from protlat.data.batching import BatchPlan
from protlat.data.dataset import MaskedDataset
from protlat.data.lanes import LanePlan
from protlat.data.masking import Masker
from protlat.data.next_token import NextTokenDataset
from protlat.data.random_streams import Purpose, stream
from protlat.data.shards import MANIFEST_NAME, ShardReader, read_manifest
from protlat.errors import CheckpointError, ConfigError, ShardError
from protlat.files import require_disk_space, sha256_file
from protlat.models import language_model_class, read_model_config, resolve_model_folder
from protlat.models.language_model import LanguageModel
from protlat.training.carry import CarriedStates
from protlat.training.checkpoint import Checkpoint, CheckpointStore, checkpoint_bytes
from protlat.training.describe import CONFIG_FILE
from protlat.training.engine import (
    Process,
    build_engine,
    deepspeed_dict,
    launch_variables,
    start_process,
)
from protlat.training.evaluation import Validator
from protlat.training.loop import (
    LimitsConfig,
    Loop,
    Parts,
    RunState,
    Settings,
    is_finished,
    resolve_limits,
)
from protlat.training.metrics import MetricsLog
from protlat.training.optim import make_optimizer
from protlat.training.run_folder import RunFolder
from protlat.training.state import restore_state

from .pretrain_config import PretrainConfig, load_config
from .pretrain_end import account_of, write_model

__all__ = ["PretrainConfig", "Result", "load_config", "run"]

T = TypeVar("T")
log = logging.getLogger(__name__)
# Settings that a resumed run cannot change without becoming another run.
_FIXED = ("model", "warm_start", "seed", "masking", "batching")
_LOG_BYTES = 64 << 20


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes
    ----------
    folder : Path
    step : int
    stopped_by : int or None
        Number of the signal that ended it early; a checkpoint was saved then.
    summary : dict
        Closing account, by name.
    """

    folder: Path
    step: int
    stopped_by: int | None
    summary: dict[str, Any]


def run(config: PretrainConfig, output: str | Path, resume: bool = False, overwrite: bool = False) -> Result:
    """Pretrain, or go on with a run that was stopped.

    Parameters
    ----------
    config : PretrainConfig
        With `resume`, the settings that make the run what it is must be those it was started with.
    output : path
        Run folder.
    resume : bool
        Continue from the newest whole checkpoint.
    overwrite : bool
        Delete the run that is there.

    Raises
    ------
    ConfigError, ShardError, CheckpointError, OutputError, TrainingError
    """
    with launch_variables():
        return _run(config, Path(output), resume, overwrite)


def _run(config: PretrainConfig, path: Path, resume: bool, overwrite: bool) -> Result:
    folder = RunFolder(path)
    train = _open_split(config.shards, "train")
    valid = _open_validation(config.shards)
    if not resume:
        _check_alphabet(config, train.alphabet)
    process = start_process(config.engine)
    ds_config = deepspeed_dict(config.engine, process.dtype, process.world_size)
    store = CheckpointStore(path / "checkpoints", config.checkpoints.keep)
    checkpoint = _together(process, lambda: _prepare(folder, store, config, process, resume, overwrite))
    dataset = _make_dataset(config, train)
    plan = _make_plan(config, dataset, config.engine.accumulate * process.world_size)
    limits = resolve_limits(config.limits, plan, config.engine.accumulate * process.world_size)
    state = RunState() if checkpoint is None else RunState.from_plain(checkpoint.state)
    model = _make_model(config, train.alphabet, checkpoint)
    n_parameters = model.n_parameters()
    if process.is_first:
        _announce(process, dataset, n_parameters, limits)
    _together(process, lambda: _write_start(folder, config, process, train, n_parameters, ds_config))
    engine = build_engine(model, make_optimizer(model, config.optim), ds_config)
    _seed_dropout(config.seed, process.rank)
    carried = None
    if config.batching.long == "carry":
        carried = CarriedStates(process.rank, process.world_size, config.engine.accumulate)
    if checkpoint is not None:
        _restore(engine, checkpoint, process, carried, config.engine.accumulate)
    validator, floors = _make_validator(config, train, valid, process, path)
    metrics = MetricsLog(path, state.step, is_finished(limits, state)) if process.is_first else None
    settings = Settings(
        config.optim.lr,
        config.schedule,
        limits,
        config.engine.accumulate,
        config.batching.prefetch,
        config.checkpoints,
        config.evaluation,
        config.guard,
    )
    loop = Loop(Parts(process, engine, dataset, plan, validator, floors, store, metrics, carried), settings, state)
    _set_state(folder, process, "running, or killed before it could say so")
    try:
        loop.run()
    except BaseException:
        _set_state(folder, process, "stopped by an error")
        raise
    finally:
        if metrics is not None:
            metrics.close()
    if loop.stopped_by is not None:
        _set_state(folder, process, f"stopped by {loop.stopped_by.name}; resume with --resume")
    else:
        write_model(folder, language_model_class(config.model)(config.model, train.alphabet), loop, config.to_yaml())
        _set_state(folder, process, "finished")
    stopped_by = None if loop.stopped_by is None else int(loop.stopped_by)
    return Result(path, state.step, stopped_by, account_of(folder, loop, n_parameters))


def _make_dataset(config: PretrainConfig, train: ShardReader) -> MaskedDataset | NextTokenDataset:
    alphabet, size, seed = train.alphabet, config.crop_length, config.seed
    long = config.batching.long
    if config.masking is None:
        # Carried documents are not cut by the dataset: the plan of the lanes says what is read.
        return NextTokenDataset(train, alphabet, size, seed, "pieces" if long == "carry" else long)
    assert long != "carry"
    return MaskedDataset(train, alphabet, Masker(config.masking, alphabet), size, seed, long)


def _make_plan(
    config: PretrainConfig, dataset: MaskedDataset | NextTokenDataset, batches_per_step: int
) -> BatchPlan | LanePlan:
    batching = config.batching
    if batching.long == "carry":
        assert isinstance(dataset, NextTokenDataset)
        n_lanes = batching.tokens_per_batch // config.crop_length
        return LanePlan(dataset.whole_lengths, n_lanes, config.crop_length, config.seed, batches_per_step)
    return BatchPlan(dataset.lengths, batching.tokens_per_batch, config.seed)


def _together(process: Process, work: Callable[[], T]) -> T:
    """Do something that may fail on one rank only, so that the others do not wait for it."""
    result: T | None = None
    error: Exception | None = None
    try:
        result = work()
    except Exception as problem:  # raised again, here or on the rank that has it
        error = problem
    process.raise_together(error)
    return cast(T, result)


def _prepare(
    folder: RunFolder, store: CheckpointStore, config: PretrainConfig, process: Process, resume: bool, overwrite: bool
) -> Checkpoint | None:
    """Claim the folder; with `resume`, find the checkpoint to go on from."""
    if process.is_first:
        if config.verify_shards:
            for split, info in read_manifest(config.shards).splits.items():
                if split in ("train", "valid") and info.n_sequences:
                    ShardReader(config.shards, split, verify=True)
        folder.prepare(resume, overwrite)
    if not resume:
        return None
    if process.is_first:
        store.clear_unfinished()
        folder.check_resumed(config.to_plain(), _FIXED, sha256_file(Path(config.shards) / MANIFEST_NAME))
    if not store.all():
        log.warning("%s: the run was stopped before its first checkpoint; it begins anew", folder.path)
        return None
    return store.newest()


def _write_start(
    folder: RunFolder,
    config: PretrainConfig,
    process: Process,
    train: ShardReader,
    n_parameters: int,
    ds_config: dict[str, Any],
) -> None:
    if not process.is_first:
        return
    n_checkpoints = config.checkpoints.keep + 1  # a new one is written before the oldest goes
    needed = n_checkpoints * checkpoint_bytes(n_parameters) + 4 * n_parameters + _LOG_BYTES
    require_disk_space(folder.path, needed, f"a run with {config.checkpoints.keep} checkpoints")
    data = {
        "shards": config.shards,
        "manifest_sha256": sha256_file(Path(config.shards) / MANIFEST_NAME),
        "n_sequences": len(train),
        "n_residues": int(train.lengths.sum()),
        "tags": train.manifest.splits["train"].tags,
    }
    session = {
        "world_size": process.world_size,
        "device": str(process.device),
        "dtype": str(process.dtype).removeprefix("torch."),
    }
    folder.write_start(config.to_commented_yaml(), ds_config, data, session)


def _set_state(folder: RunFolder, process: Process, state: str) -> None:
    if process.is_first:
        folder.set_state(state)


def _open_split(folder: str, split: str) -> ShardReader:
    reader = ShardReader(folder, split)
    if len(reader) == 0:
        raise ShardError(f"{folder}: the {split} split is empty; there is nothing to train on")
    return reader


def _open_validation(folder: str) -> ShardReader | None:
    info = read_manifest(folder).splits.get("valid")
    if info is None or info.n_sequences == 0:
        log.warning("%s: no validation split, so the run has no validation scores", folder)
        return None
    return ShardReader(folder, "valid")


def _check_alphabet(config: PretrainConfig, alphabet: Alphabet) -> None:
    if config.warm_start is None:
        return
    model_config, model_alphabet = read_model_config(resolve_model_folder(config.warm_start))
    if model_alphabet.to_plain() != alphabet.to_plain():
        raise ConfigError(
            f"{config.warm_start}: its alphabet is {model_alphabet.name} ({len(model_alphabet)} tokens), but "
            f"{config.shards} is written in {alphabet.name} ({len(alphabet)} tokens)"
        )
    if model_config != config.model:
        raise ConfigError(f"{config.warm_start}: its architecture differs from the settings under model")


def _make_model(config: PretrainConfig, alphabet: Alphabet, checkpoint: Checkpoint | None) -> LanguageModel:
    import torch

    torch.manual_seed(config.seed)
    model_class = language_model_class(config.model)
    if checkpoint is None and config.warm_start is not None:
        return model_class.from_pretrained(config.warm_start).train()
    model = model_class(config.model, alphabet)
    if checkpoint is not None:
        _load_weights(model, checkpoint)
    return model


def _load_weights(model: LanguageModel, checkpoint: Checkpoint) -> None:
    weights = checkpoint.weights()
    names = {name for name, _ in model.named_parameters()}
    if names != set(weights):
        odd = ", ".join(sorted(names ^ set(weights))[:5])
        raise CheckpointError(f"{checkpoint.folder}: its weights are not those of the model in {CONFIG_FILE}: {odd}")
    model.load_state_dict(weights, strict=False)


def _restore(
    engine: Any, checkpoint: Checkpoint, process: Process, carried: CarriedStates | None, accumulate: int
) -> None:
    if carried is not None:
        n_sets, now = checkpoint.n_carried, process.world_size * accumulate
        if n_sets != now:
            raise ConfigError(
                f"{checkpoint.folder}: its lanes form {n_sets} batches a step, now there would be {now} (processes times "
                f"engine.accumulate); a run with batching.long=carry goes on only with as many"
            )
        carried.restore(checkpoint.carried, process.device)
    weights, moments = checkpoint.weights(), checkpoint.moments()
    restore_state(engine, weights.__getitem__, moments.__getitem__, int(checkpoint.state["optimizer_steps"]))
    world_size = checkpoint.state["world_size"]
    if not checkpoint.restore_random_state(process.rank) or world_size != process.world_size:
        log.warning(
            "resume: the checkpoint was written by %d processes, now there are %d: data order and masks go on as before, "
            "dropout does not", world_size, process.world_size,
        )  # fmt: skip
    if process.is_first:
        log.info("resuming from %s (step %d)", checkpoint.folder, checkpoint.step)


def _seed_dropout(seed: int, rank: int) -> None:
    import torch

    torch.manual_seed(int(stream(seed, Purpose.DROPOUT, index=rank).integers(2**63 - 1)))


def _make_validator(
    config: PretrainConfig, train: ShardReader, valid: ShardReader | None, process: Process, folder: Path
) -> tuple[Validator | None, dict[str, Any] | None]:
    if valid is None:
        return None, None
    validator = Validator(
        valid,
        config.masking,
        config.evaluation,
        config.batching.tokens_per_batch,
        config.longest_pass,
        config.passes_state,
    )

    def score_floors() -> dict[str, Any] | None:
        if not process.is_first:
            return None
        return validator.floors(train, folder)

    return validator, _together(process, score_floors)


def _announce(
    process: Process, dataset: MaskedDataset | NextTokenDataset, n_parameters: int, limits: LimitsConfig
) -> None:
    bounds = {name: value for name, value in limits.to_plain().items() if value is not None}
    log.info(
        "%s parameters on %s, %s, %d process(es); %s sequences, %s tokens an epoch; until %s",
        f"{n_parameters:,}", process.device, str(process.dtype).removeprefix("torch."), process.world_size,
        f"{len(dataset.source):,}", f"{int(dataset.lengths.sum()):,}", ", ".join(f"{k} {v:,}" for k, v in bounds.items()),
    )  # fmt: skip
    if dataset.n_cropped:
        log.info(
            "%d sequences are longer than %d tokens: each epoch reads another random crop of them; batching.long=pieces "
            "reads all of them",
            dataset.n_cropped, dataset.max_length,
        )  # fmt: skip


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["pretrain", *sys.argv[1:]])
