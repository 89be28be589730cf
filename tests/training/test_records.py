"""Scores, metrics files, random states, checkpoint folders, reports."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from protlat.errors import CheckpointError, OutputError
from protlat.files import sha256_file, write_json
from protlat.training.checkpoint import MANIFEST, STATE, CheckpointStore, read_checkpoint
from protlat.training.describe import describe_run
from protlat.training.metrics import MetricsLog, read_metrics
from protlat.training.random_state import load_random_state, save_random_state
from protlat.training.report import loss_curve
from protlat.training.run_folder import RunFolder
from protlat.training.scores import Tally


def test_perplexity_is_over_all_positions_not_a_mean_of_means() -> None:
    tally = Tally(["a", "b", "unused"])
    tally.add(np.array([0, 0, 0]), np.array([1.0, 2.0, 3.0]), np.array([True, False, False]))
    tally.add(np.array([1]), np.array([6.0]), np.array([True]))
    summary = tally.summary()
    assert summary["loss"] == 3.0
    assert summary["perplexity"] == pytest.approx(math.exp(3))
    assert summary["accuracy"] == 0.5
    assert summary["tags"]["a"]["loss"] == 2.0
    assert set(summary["tags"]) == {"a", "b"}
    tally.reduce(lambda values: [2 * v for v in values])
    assert tally.summary()["n"] == 8
    assert Tally([""]).summary() == {"n": 0, "loss": None, "perplexity": None, "accuracy": None}


def test_a_resumed_record_has_each_step_once(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0) as metrics:
        for step in (1, 2, 3, 4):
            metrics.write({"kind": "train", "step": step, "loss": 1 / step})
    path = tmp_path / "metrics.jsonl"
    with open(path, "a") as file:
        file.write('{"kind": "train", "st')
    assert len(read_metrics(path)) == 4
    with MetricsLog(tmp_path, 2) as metrics:
        metrics.write({"kind": "train", "step": 3, "loss": 0.1})
    rows = read_metrics(path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[1]["loss"] == 0.5
    assert rows[2]["loss"] == 0.1


def test_random_states_come_back(tmp_path: Path) -> None:
    np.random.standard_normal()  # noqa: NPY002  leaves a second normal number waiting, which must be kept too
    random.gauss(0, 1)
    save_random_state(tmp_path / "random.safetensors")

    def draw() -> list[float]:
        numbers = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.standard_normal()]  # noqa: NPY002
        return [*numbers, torch.rand(1).item()]

    first = draw()
    assert draw() != first
    load_random_state(tmp_path / "random.safetensors")
    assert draw() == first


def fake_checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"step-{step:010d}"
    path.mkdir(parents=True)
    write_json(path / STATE, {"step": step})
    write_json(path / MANIFEST, {"format": 1, "step": step, "sha256": {STATE: sha256_file(path / STATE)}})
    return path


def test_newest_whole_checkpoint_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    with pytest.raises(CheckpointError, match="nothing to resume"):
        store.newest()
    for step in (5, 10, 20):
        fake_checkpoint(tmp_path, step)
    (tmp_path / ".tmp-step-0000000030").mkdir()
    (tmp_path / "step-0000000040").mkdir()
    assert [f.name for f in store.all()] == ["step-0000000020", "step-0000000010", "step-0000000005"]
    assert store.newest().step == 20
    (tmp_path / "step-0000000020" / STATE).write_text('{"step": 21}')
    caplog.set_level("WARNING", logger="protlat")
    assert store.newest().step == 10
    assert "step-0000000020/state.json: damaged" in caplog.text


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = fake_checkpoint(tmp_path, 1)
    write_json(path / MANIFEST, {"format": 2, "step": 1, "sha256": {}})
    with pytest.raises(CheckpointError, match="update protlat"):
        read_checkpoint(path)
    (path / MANIFEST).write_text("{}")
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        read_checkpoint(path)


def test_describe_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run folder"):
        describe_run(tmp_path)


def test_loss_curve_of_a_run_without_validation(tmp_path: Path) -> None:
    rows = [{"kind": "train", "step": s, "tokens": 100 * s, "loss": 3 - s / 100} for s in range(1, 4)]
    json.dumps(rows)
    loss_curve(tmp_path / "curve.png", rows)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0) as record:
        record._file.close()
        record._file = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115
        with pytest.raises(OutputError, match=r"the record of step 1 cannot be written: .*No space left"):
            record.write({"kind": "train", "step": 1, "loss": 2.0})


def test_a_state_that_cannot_be_noted_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="protlat")
    RunFolder(tmp_path / "absent").set_state("finished")
    assert "the state 'finished' cannot be noted" in caplog.text
