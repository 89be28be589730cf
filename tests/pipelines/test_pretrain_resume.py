"""A run that is killed and resumed ends as one that was not, bit for bit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from protlat.pipelines.pretrain import PretrainConfig, load_config, run
from protlat.training import loop as loop_module
from protlat.training.describe import describe_run
from protlat.training.metrics import read_metrics

N_STEPS = 10

# Runs pretraining and kills it, without a chance to clean up, between the forward and the backward pass of a step.
KILLED = """
import os, signal, sys
import torch
from protlat.pipelines.pretrain import PretrainConfig, run
from protlat.training import loop

torch.set_num_threads(1)
real, calls = torch.nn.functional.cross_entropy, 0

def cross_entropy(*args, **kwargs):
    global calls
    calls += kwargs["reduction"] == "sum"
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)

loop.F.cross_entropy = cross_entropy
run(PretrainConfig.load(sys.argv[1]), sys.argv[2])
"""

# Each rank: a run to the end, a run that breaks off in mid-step, and its continuation, for two ZeRO stages.
TWO_RANKS = """
import sys
import torch
from protlat.pipelines.pretrain import PretrainConfig, run
from protlat.training import loop

torch.set_num_threads(1)
real = torch.nn.functional.cross_entropy

class Crash(Exception):
    pass

for stage, dtype in ((1, "bfloat16"), (2, "float32")):
    config = PretrainConfig.load(sys.argv[1], [f"engine.zero_stage={stage}", f"engine.dtype={dtype}"])
    run(config, f"{sys.argv[2]}/whole-{stage}")
    calls = 0

    def cross_entropy(*args, **kwargs):
        global calls
        calls += kwargs["reduction"] == "sum"
        if calls == 8:
            raise Crash
        return real(*args, **kwargs)

    loop.F.cross_entropy = cross_entropy
    try:
        run(config, f"{sys.argv[2]}/broken-{stage}")
    except Crash:
        pass
    loop.F.cross_entropy = real
    run(config, f"{sys.argv[2]}/broken-{stage}", resume=True)
"""


def toy_config(shards: Path, overrides: tuple[str, ...], *more: str) -> PretrainConfig:
    steps = f"limits.max_steps={N_STEPS}"
    return load_config(None, (*overrides, "evaluation.floors=false", steps, *more), shards=str(shards))


def record(folder: Path) -> list[dict[str, Any]]:
    """Rows of a run without what a clock or a memory meter says."""
    clocked = {"tokens_per_s", "wait_s", "memory_bytes", "wall_s", "seconds"}
    rows = read_metrics(folder / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in clocked} for row in rows]


def assert_same_run(one: Path, other: Path) -> None:
    assert record(one) == record(other)
    for name in ("weights.safetensors", "moments.safetensors"):
        last = f"checkpoints/step-{N_STEPS:010d}/{name}"
        first, second = load_file(one / last), load_file(other / last)
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert torch.equal(value, second[key]), key
    assert (one / "model/model.safetensors").read_bytes() == (other / "model/model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_killed_in_mid_step_and_resumed(
    dtype: str, toy_shards: Path, toy_overrides: tuple[str, ...], tmp_path: Path
) -> None:
    config = toy_config(toy_shards, toy_overrides, f"engine.dtype={dtype}", "engine.accumulate=2")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(config, whole)
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    # Two batches a step: call 16 is the second batch of step 8; the newest checkpoint is of step 6.
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(killed), "16"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert (killed / "checkpoints/latest").read_text() == "step-0000000006\n"
    assert read_metrics(killed / "metrics.jsonl")[-1]["step"] == 7
    run(config, killed, resume=True)
    assert_same_run(whole, killed)


def test_stopped_by_a_signal_and_resumed(
    toy_shards: Path, toy_overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config(toy_shards, toy_overrides, "engine.dtype=float32")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(config, whole)
    for number, kind in ((4, signal.SIGTERM), (3, signal.SIGINT)):
        real, calls = torch.nn.functional.cross_entropy, [0]

        def cross_entropy(*args: Any, calls: list[int] = calls, real: Any = real, **kwargs: Any) -> torch.Tensor:
            in_training = kwargs["reduction"] == "sum"
            calls[0] += in_training
            if in_training and calls[0] == number:  # noqa: B023  called within this turn only
                os.kill(os.getpid(), kind)  # noqa: B023
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(loop_module.F, "cross_entropy", cross_entropy)
            result = run(config, stopped, resume=kind == signal.SIGINT)
        assert result.stopped_by == kind
        assert "resume with --resume" in describe_run(stopped)["state"]
        assert not (stopped / "model").exists()
    assert result.step == 7
    (stopped / "checkpoints/.tmp-step-0000000009").mkdir()
    run(config, stopped, resume=True)
    assert not list((stopped / "checkpoints").glob(".tmp*"))
    assert_same_run(whole, stopped)
    # Going on with a run that is over scores it again and adds nothing else.
    run(config, stopped, resume=True)
    assert_same_run(whole, stopped)


def start_ranks(command: list[str], world_size: int, logs: Path) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(world_size):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        env = {**os.environ, "MASTER_ADDR": "127.0.0.1", **{key: str(value) for key, value in names.items()}}
        with open(logs / f"rank{rank}.log", "wb") as log:
            processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    return processes


def test_two_ranks_resume_exactly_and_read_what_one_reads(
    toy_shards: Path, toy_overrides: tuple[str, ...], tmp_path: Path
) -> None:
    config = toy_config(toy_shards, toy_overrides)
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    ranks = start_ranks([sys.executable, "-c", TWO_RANKS, str(path), str(tmp_path)], 2, tmp_path)
    for rank, process in enumerate(ranks):
        assert process.wait(timeout=200) == 0, (tmp_path / f"rank{rank}.log").read_text()[-3000:]
    for stage in (1, 2):
        assert_same_run(tmp_path / f"whole-{stage}", tmp_path / f"broken-{stage}")
    # One rank that sums two batches takes the same steps; only dropout differs, so losses are close, not equal.
    alone = tmp_path / "alone"
    run(toy_config(toy_shards, toy_overrides, "engine.accumulate=2", "engine.dtype=float32"), alone)
    mine = [row for row in record(alone) if row["kind"] == "train"]
    theirs = [row for row in record(tmp_path / "whole-2") if row["kind"] == "train"]
    assert [(row["tokens"], row["epoch"]) for row in mine] == [(row["tokens"], row["epoch"]) for row in theirs]
    assert [row["loss"] for row in mine] == pytest.approx([row["loss"] for row in theirs], abs=0.05)
    # A checkpoint of two ranks goes on with one.
    more = toy_config(toy_shards, toy_overrides, "engine.dtype=float32", "limits.max_steps=12")
    assert run(more, tmp_path / "whole-2", resume=True).step == 12


def test_deepspeed_launcher(toy_shards: Path, toy_overrides: tuple[str, ...], tmp_path: Path) -> None:
    launcher = Path(sys.executable).with_name("deepspeed")
    sets = [part for item in (*toy_overrides, "evaluation.floors=false") for part in ("--set", item)]
    command = [
        str(launcher),
        "--num_gpus",
        "2",
        "--module",
        "protlat.pipelines.pretrain",
        str(toy_shards),
        "--max-steps",
        "3",
    ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        command[1:1] = ["--master_port", str(probe.getsockname()[1])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{launcher.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "run"), *sets],
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert describe_run(tmp_path / "run")["training"]["steps"] == 3
    assert (tmp_path / "run/model/model.safetensors").is_file()
    assert "2 process(es)" in done.stderr + done.stdout
