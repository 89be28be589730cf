"""From a shard folder to a run folder with a pretrained model."""

from __future__ import annotations

import json
import logging
import math
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import Field

from protlat import __version__
from protlat.alphabet import Alphabet
from protlat.config import Config, parse_scalar, read_yaml, set_dotted
from protlat.data.batching import BatchingConfig, BatchPlan
from protlat.data.dataset import MaskedDataset
from protlat.data.masking import Masker, MaskingConfig
from protlat.data.shards import MANIFEST_NAME, ShardReader, read_manifest
from protlat.errors import CheckpointError, ConfigError, OutputError, ShardError
from protlat.files import require_disk_space, sha256_file, write_json, write_text
from protlat.models import MaskedLM, ModelConfig, load_preset, read_model_config, resolve_model_folder
from protlat.training.checkpoint import Checkpoint, CheckpointConfig, CheckpointStore, checkpoint_bytes
from protlat.training.describe import CONFIG_FILE, RUN_FILE, is_run_folder
from protlat.training.engine import (
    EngineConfig,
    Process,
    build_engine,
    deepspeed_dict,
    launch_variables,
    start_process,
)
from protlat.training.evaluation import EvaluationConfig, Validator
from protlat.training.loop import GuardConfig, LimitsConfig, Loop, Parts, RunState, Settings, is_finished
from protlat.training.metrics import METRICS_FILE, MetricsLog, read_metrics
from protlat.training.optim import OptimConfig, ScheduleConfig, make_optimizer
from protlat.training.report import loss_curve, model_card
from protlat.training.state import gather_weights, restore_state

log = logging.getLogger(__name__)
_PACKAGES = ("torch", "deepspeed", "numpy", "pyarrow", "safetensors", "pydantic")
# Settings that a resumed run cannot change without becoming another run.
_FIXED = ("model", "warm_start", "seed", "masking", "batching")
_LOG_BYTES = 64 << 20


class PretrainConfig(Config):
    """Everything that decides a pretraining run."""

    shards: str = "shards"
    """Folder made by `protlat prep`."""
    model: ModelConfig = Field(default_factory=lambda: load_preset("tiny"))
    """Architecture: a preset's name, a YAML file, or the settings themselves."""
    warm_start: str | None = None
    """Model or run folder whose weights the run begins with."""
    seed: int = Field(0, ge=0)
    """Fixes initial weights, order, crops, masks and dropout."""
    masking: MaskingConfig = MaskingConfig()
    """Which residues are hidden."""
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
        if Path(named).is_dir():
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


def _run(config: PretrainConfig, folder: Path, resume: bool, overwrite: bool) -> Result:
    train = _open_split(config.shards, "train")
    valid = _open_validation(config.shards)
    if not resume:
        _check_alphabet(config, train.alphabet)
    process = start_process(config.engine)
    error: Exception | None = None
    checkpoint: Checkpoint | None = None
    store = CheckpointStore(folder / "checkpoints", config.checkpoints.keep)
    try:
        if process.is_first:
            _prepare_folder(folder, config, resume, overwrite)
        if resume:
            checkpoint = store.newest()
            if process.is_first:
                store.clear_unfinished()
    except Exception as problem:  # told to every rank below, so that none waits
        error = problem
    process.raise_together(error)

    dataset = MaskedDataset(
        train, train.alphabet, Masker(config.masking, train.alphabet), config.batching.crop_length, config.seed
    )
    plan = BatchPlan(dataset.lengths, config.batching.tokens_per_batch, config.seed)
    limits = resolve_limits(config.limits, plan, config.engine.accumulate * process.world_size)
    state = RunState() if checkpoint is None else RunState.from_plain(checkpoint.state)
    model = _make_model(config, train.alphabet, checkpoint)
    n_parameters = model.n_parameters()
    if process.is_first:
        n_checkpoints = config.checkpoints.keep + 1
        needed = n_checkpoints * checkpoint_bytes(n_parameters) + 4 * n_parameters + _LOG_BYTES
        _announce(config, process, train, dataset, n_parameters, limits)
        error = None
        try:
            require_disk_space(folder, needed, f"a run with {config.checkpoints.keep} checkpoints")
            _write_start(folder, config, process, train)
        except OutputError as problem:
            error = problem
    process.raise_together(error)
    ds_config = deepspeed_dict(config.engine, process.dtype, process.world_size)
    engine = build_engine(model, make_optimizer(model, config.optim), ds_config)
    _seed_dropout(config.seed, process.rank)
    if checkpoint is not None:
        _restore(engine, checkpoint, process)
    validator, floors = _make_validator(config, train, valid, process, folder)
    metrics = MetricsLog(folder, state.step, is_finished(limits, state)) if process.is_first else None
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
    parts = Parts(process, engine, dataset, plan, validator, floors, store, metrics)
    loop = Loop(parts, settings, state)
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
        _write_model(folder, config, parts, loop, train, ds_config)
        _set_state(folder, process, "finished")
    return Result(
        folder,
        state.step,
        None if loop.stopped_by is None else int(loop.stopped_by),
        _account(folder, loop, dataset, n_parameters),
    )


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


def _prepare_folder(folder: Path, config: PretrainConfig, resume: bool, overwrite: bool) -> None:
    if resume:
        if not is_run_folder(folder):
            raise CheckpointError(f"{folder}: there is no run here to resume")
        _check_resumed(folder, config)
        return
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is a file; give a folder for the run")
    if folder.is_dir() and any(folder.iterdir()):
        if not is_run_folder(folder):
            raise OutputError(f"{folder}: holds other files; give an empty or a new folder")
        if not overwrite:
            raise OutputError(
                f"{folder}: already holds a run; use --resume to go on with it, or --overwrite to delete it"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def _check_resumed(folder: Path, config: PretrainConfig) -> None:
    before, now = PretrainConfig.load(folder / CONFIG_FILE).to_plain(), config.to_plain()
    for key in _FIXED:
        if before[key] != now[key] and not (
            key == "shards" and Path(before[key]).resolve() == Path(now[key]).resolve()
        ):
            raise ConfigError(f"{folder}: {key} differs from the run's {CONFIG_FILE}; a resumed run cannot change it")
    for key, value in now.items():
        if value != before[key]:
            log.warning("resume: %s differs from the run's %s: %s, now %s", key, CONFIG_FILE, before[key], value)
    data = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))["data"]
    found = read_manifest(config.shards)
    if data["manifest_sha256"] != sha256_file(Path(config.shards) / MANIFEST_NAME):
        raise ShardError(
            f"{config.shards}: these are not the shards that the run was started on "
            f"({found.splits['train'].n_sequences:,} training sequences here, {data['n_sequences']:,} there)"
        )


def resolve_limits(limits: LimitsConfig, plan: BatchPlan, batches_per_step: int) -> LimitsConfig:
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


def _make_model(config: PretrainConfig, alphabet: Alphabet, checkpoint: Checkpoint | None) -> MaskedLM:
    import torch

    torch.manual_seed(config.seed)
    if checkpoint is None and config.warm_start is not None:
        return MaskedLM.from_pretrained(config.warm_start).train()
    model = MaskedLM(config.model, alphabet)
    if checkpoint is not None:
        _load_weights(model, checkpoint)
    return model


def _load_weights(model: MaskedLM, checkpoint: Checkpoint) -> None:
    weights = checkpoint.weights()
    names = {name for name, _ in model.named_parameters()}
    if names != set(weights):
        odd = ", ".join(sorted(names ^ set(weights))[:5])
        raise CheckpointError(f"{checkpoint.folder}: its weights are not those of the model in {CONFIG_FILE}: {odd}")
    model.load_state_dict(weights, strict=False)


def _restore(engine: Any, checkpoint: Checkpoint, process: Process) -> None:
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

    from protlat.data.random_streams import Purpose, stream

    torch.manual_seed(int(stream(seed, Purpose.DROPOUT, index=rank).integers(2**63 - 1)))


def _make_validator(
    config: PretrainConfig, train: ShardReader, valid: ShardReader | None, process: Process, folder: Path
) -> tuple[Validator | None, dict[str, Any] | None]:
    if valid is None:
        return None, None
    batching = config.batching
    validator = Validator(valid, config.masking, config.evaluation, batching.tokens_per_batch, batching.crop_length)
    floors, error = None, None
    if process.is_first:
        try:
            floors = validator.floors(train, train.alphabet, config.masking, config.evaluation, folder)
        except Exception as problem:  # told to every rank below
            error = problem
    process.raise_together(error)
    return validator, floors


def _announce(
    config: PretrainConfig,
    process: Process,
    train: ShardReader,
    dataset: MaskedDataset,
    n_parameters: int,
    limits: LimitsConfig,
) -> None:
    bounds = {name: value for name, value in limits.to_plain().items() if value is not None}
    log.info(
        "%s parameters on %s, %s, %d process(es); %s sequences, %s tokens an epoch; until %s",
        f"{n_parameters:,}", process.device, str(process.dtype).removeprefix("torch."), process.world_size,
        f"{len(train):,}", f"{int(dataset.lengths.sum()):,}", ", ".join(f"{k} {v:,}" for k, v in bounds.items()),
    )  # fmt: skip
    if dataset.n_cropped:
        log.info(
            "%d sequences are longer than %d tokens: each epoch reads another random crop of them",
            dataset.n_cropped, dataset.max_length,
        )  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of what a run's numbers depend on."""
    found = {"protlat": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def command_line() -> str:
    """How this process was started."""
    import shlex

    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _write_start(folder: Path, config: PretrainConfig, process: Process, train: ShardReader) -> None:
    path = folder / RUN_FILE
    facts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"sessions": []}
    facts["data"] = {
        "shards": config.shards,
        "manifest_sha256": sha256_file(Path(config.shards) / MANIFEST_NAME),
        "n_sequences": len(train),
        "n_residues": int(train.lengths.sum()),
        "tags": train.manifest.splits["train"].tags,
    }
    facts["versions"] = versions()
    facts["sessions"].append(
        {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": command_line(),
            "host": platform.node(),
            "world_size": process.world_size,
            "device": str(process.device),
            "dtype": str(process.dtype).removeprefix("torch."),
        }
    )
    # config.yaml last: with it the folder counts as a run.
    write_json(path, facts)
    write_json(folder / "deepspeed.json", deepspeed_dict(config.engine, process.dtype, process.world_size))
    write_text(folder / CONFIG_FILE, config.to_commented_yaml())


def _set_state(folder: Path, process: Process, state: str) -> None:
    if process.is_first:
        facts = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        write_json(folder / RUN_FILE, {**facts, "state": state})


def _write_model(
    folder: Path, config: PretrainConfig, parts: Parts, loop: Loop, train: ShardReader, ds_config: dict[str, Any]
) -> None:
    process, state = parts.process, loop.state
    weights = gather_weights(parts.engine, process.is_first)
    if not process.is_first:
        return
    model = MaskedLM(config.model, train.alphabet)
    model.load_state_dict(weights, strict=False)
    run_facts = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    n_batches = parts.plan.n_batches(state.position.epoch)
    facts = {
        "name": folder.resolve().name,
        "n_parameters": model.n_parameters(),
        "weights_bytes": 4 * model.n_parameters(),
        **run_facts["data"],
        "versions": run_facts["versions"],
        "command": command_line(),
        "step": state.step,
        "n_tokens": state.n_tokens,
        "epochs": state.position.epoch + state.position.batch / n_batches,
        "elapsed_s": state.elapsed_s,
        "world_size": process.world_size,
        "dtype": str(process.dtype).removeprefix("torch."),
        "config_yaml": config.to_yaml(),
    }
    floors = None if parts.floors is None else parts.floors["whole"]
    model.save_pretrained(folder / "model", model_card(facts, loop.final_scores, floors))
    loss_curve(folder / "loss_curve.png", read_metrics(folder / METRICS_FILE))


def _account(folder: Path, loop: Loop, dataset: MaskedDataset, n_parameters: int) -> dict[str, Any]:
    from protlat.files import format_bytes
    from protlat.reporting import format_seconds, peak_memory_bytes

    state, scores = loop.state, loop.final_scores
    account: dict[str, Any] = {
        "steps": state.step,
        "tokens": state.n_tokens,
        "masked residues": state.n_masked,
        "sequences an epoch": len(dataset),
        "of them cropped": dataset.n_cropped,
        "parameters": n_parameters,
    }
    if scores is not None and scores["perplexity"] is not None:
        account["validation perplexity"] = f"{scores['perplexity']:.3f}"
        account["validation accuracy"] = f"{100 * scores['accuracy']:.2f} %"
        if "floor_trigram" in scores:
            account["floors (frequencies, trigram)"] = (
                f"{scores['floor_frequencies']:.3f}, {scores['floor_trigram']:.3f}"
            )
    account["time"] = format_seconds(state.elapsed_s)
    account["peak memory"] = format_bytes(peak_memory_bytes())
    account["run folder"] = str(folder)
    if loop.stopped_by is None:
        account["model"] = str(folder / "model")
        account["loss curve"] = str(folder / "loss_curve.png")
    return account


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["pretrain", *sys.argv[1:]])
