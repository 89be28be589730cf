"""DeepSpeed: its dictionary from our settings, its processes, and the engine that every step runs through."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from protlat.config import Config
from protlat.devices import resolve_device, resolve_dtype
from protlat.errors import ConfigError

log = logging.getLogger(__name__)


class EngineConfig(Config):
    """Where and how steps are computed."""

    device: str = "auto"
    """auto, cpu or cuda; auto takes a GPU when there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of weights and activations; master weights and sums stay float32. auto: bfloat16 where it is native."""
    zero_stage: Literal[0, 1, 2, 3] = 1
    """What DeepSpeed splits over ranks: 1 optimiser state, 2 gradients too, 3 weights too; 0 nothing (float32 only)."""
    accumulate: int = Field(1, ge=1)
    """Batches that each rank sums before a step."""
    clip: float = Field(1.0, ge=0)
    """Norm above which gradients are scaled down to it; 0: never."""
    deepspeed_config: str | None = None
    """DeepSpeed JSON file whose other keys are passed on; a key that contradicts a setting here is refused."""


# Keys of DeepSpeed's JSON that our settings decide: key -> the setting to change instead.
_DECIDED = {
    "train_batch_size": "batching.tokens_per_batch and engine.accumulate",
    "train_micro_batch_size_per_gpu": "batching.tokens_per_batch",
    "gradient_accumulation_steps": "engine.accumulate",
    "gradient_clipping": "engine.clip",
    "bf16": "engine.dtype",
    "fp16": "engine.dtype",
    "torch_autocast": "engine.dtype",
    "data_types": "engine.dtype",
    "optimizer": "optim",
    "scheduler": "schedule",
}


def deepspeed_dict(config: EngineConfig, dtype: torch.dtype, world_size: int) -> dict[str, Any]:
    """DeepSpeed's dictionary for our settings, with the user's own JSON merged in.

    A "batch" of DeepSpeed is one packed batch here, so that its batch sizes count packed batches.

    Raises
    ------
    ConfigError
        The JSON file cannot be read, or a key in it contradicts our settings.
    """
    stage = config.zero_stage
    if stage == 0 and dtype == torch.bfloat16:
        raise ConfigError("engine.zero_stage=0 sums gradients in bfloat16; use zero_stage=1, or engine.dtype=float32")
    values: dict[str, Any] = {
        "train_batch_size": config.accumulate * world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": config.accumulate,
        "gradient_clipping": config.clip,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31 - 1,
    }
    if dtype == torch.bfloat16:
        values["bf16"] = {"enabled": True}
        values["data_types"] = {"grad_accum_dtype": "fp32"}
    if config.deepspeed_config is not None:
        merge_user_json(values, read_json(config.deepspeed_config), config.deepspeed_config)
    return values


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    ConfigError
        The file cannot be read or holds something else.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: not a DeepSpeed JSON file: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def merge_user_json(ours: dict[str, Any], theirs: dict[str, Any], where: str) -> None:
    """Add a user's DeepSpeed keys to ours in place; "auto" leaves ours.

    Raises
    ------
    ConfigError
        One line per key that contradicts ours, with the setting to change instead.
    """
    faults = []
    for key, value in theirs.items():
        if value == "auto":
            continue
        if key == "zero_optimization" and isinstance(value, dict):
            stage = value.get("stage", "auto")
            if stage not in ("auto", ours[key]["stage"]):
                faults.append(f"{where}: zero_optimization.stage={stage}: set engine.zero_stage instead")
            ours[key] = {**value, "stage": ours[key]["stage"]}
        elif key in _DECIDED:
            if not _agrees(value, ours.get(key)):
                faults.append(f"{where}: {key}={json.dumps(value)}: set {_DECIDED[key]} instead")
        else:
            ours[key] = value
    if faults:
        raise ConfigError("\n".join(faults))


def _agrees(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, dict):
        if ours is None:
            return theirs.get("enabled") is False
        return isinstance(ours, dict) and all(v == "auto" or ours.get(k) == v for k, v in theirs.items())
    return bool(theirs == ours)


class Process:
    """This process among those of the run.

    Attributes
    ----------
    rank, world_size : int
    device : torch.device
    dtype : torch.dtype
        Working precision.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.rank, self.world_size, self.device, self.dtype = rank, world_size, device, dtype

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Sums over ranks, in float64."""
        if self.world_size == 1:
            return values
        from deepspeed import comm

        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        comm.all_reduce(tensor)
        return tensor.tolist()

    def barrier(self) -> None:
        if self.world_size > 1:
            # An all-reduce works on every backend; gloo's and NCCL's barriers differ in their arguments.
            self.sum([0.0])

    def raise_together(self, error: Exception | None) -> None:
        """Raise on every rank when one has an error, so that no rank waits for one that is gone."""
        failed = self.sum([float(error is not None)])[0]
        if error is not None:
            raise error
        if failed:
            raise SystemExit(1)  # the rank with the error tells what happened


def start_process(config: EngineConfig) -> Process:
    """Join the run's processes: those of the ``deepspeed`` launcher, or one on its own.

    Call it, and use the engine, inside `launch_variables`.

    Raises
    ------
    ConfigError
        A device or precision that is not there.
    """
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    with quiet_deepspeed():
        import deepspeed

        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        backend = "nccl" if device.type == "cuda" else "gloo"
        with _no_compiled_operations(deepspeed.ops):
            deepspeed.init_distributed(dist_backend=backend, verbose=False)
    # Once, however many runs a process makes.
    atexit.unregister(_leave)
    atexit.register(_leave)
    return Process(rank, world_size, device, dtype)


def _leave() -> None:
    """Close the process group before the interpreter takes its threads down, which can end in an abort."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def build_engine(model: nn.Module, optimizer: torch.optim.Optimizer, ds_config: dict[str, Any]) -> Any:
    """A DeepSpeed engine around `model`; `optimizer` becomes the one of its float32 master weights."""
    if ds_config["zero_optimization"]["stage"] == 3:
        for module in model.modules():
            module.register_forward_hook(_name_outputs)
    with quiet_deepspeed():
        import deepspeed

        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config)
    return engine


@contextlib.contextmanager
def launch_variables() -> Iterator[None]:
    """The variables that a launcher sets, for the time in which a process on its own needs them.

    Without them DeepSpeed looks for MPI; left behind, they would mislead programs that this process starts.
    """
    if "RANK" in os.environ:
        yield
        return
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    alone["MASTER_PORT"] = str(_free_port())
    before = {name: os.environ.get(name) for name in alone}
    os.environ.update(alone)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _no_compiled_operations(operations: Any) -> Iterator[None]:
    """Keep DeepSpeed from compiling its sum through shared memory, half a minute at first use: gloo does without.

    Its list of operations is made when it is first asked for, by running a compiler; an empty one stands in.
    """
    known = vars(operations).get("__compatible_ops__")
    operations.__compatible_ops__ = {}
    try:
        yield
    finally:
        if known is None:
            del operations.__compatible_ops__
        else:
            operations.__compatible_ops__ = known


class _Named(dict[str, Any]):
    """A dictionary whose keys are texts inside, and may be asked for by the number they stand for."""

    def __getitem__(self, key: int | str) -> Any:
        return super().__getitem__(str(key))


def _name_outputs(module: nn.Module, inputs: Any, output: Any) -> Any:
    """Give a dictionary of layers keys of text: DeepSpeed's stage 3 looks at the first letters of every key."""
    return _Named({str(key): value for key, value in output.items()}) if isinstance(output, dict) else None


@contextlib.contextmanager
def quiet_deepspeed() -> Iterator[None]:
    """Keep DeepSpeed's own reports off standard output, which is for results; its errors go to stderr."""
    # Raised at every call by DeepSpeed's use of torch names that are on their way out.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\..*")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"deepspeed\..*")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        yield
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.ERROR)
    for handler in logger.handlers:
        # Its own one only, not a subclass that someone else has hung in, as pytest does.
        if type(handler) is logging.StreamHandler:
            handler.setStream(sys.__stderr__)
    if said.getvalue().strip():
        log.debug("deepspeed: %s", said.getvalue().strip())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
