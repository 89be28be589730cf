"""`protlat pretrain` from end to end on a toy model."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protlat.alphabet import BYTES
from protlat.data.batching import BatchPlan
from protlat.errors import CheckpointError, ConfigError, OutputError, ShardError, TrainingError
from protlat.models import MaskedLM
from protlat.pipelines.pretrain import PretrainConfig, load_config, run
from protlat.training import loop as loop_module
from protlat.training.checkpoint import read_checkpoint
from protlat.training.describe import describe_run
from protlat.training.loop import LimitsConfig, resolve_limits
from protlat.training.metrics import read_metrics

Config = Callable[..., PretrainConfig]
CONFIGS = Path(__file__).parents[2] / "configs" / "pretrain"


@pytest.fixture
def config(toy_shards: Path, toy_overrides: tuple[str, ...]) -> Config:
    def make(*overrides: str, **values: Any) -> PretrainConfig:
        options = {"shards": str(toy_shards), "limits__max_steps": 8, "engine__dtype": "float32", **values}
        return load_config(None, (*toy_overrides, *overrides), **options)

    return make


def break_at(monkeypatch: pytest.MonkeyPatch, call: int, value: float) -> None:
    """Make the loss of one training batch `value`."""
    real, calls = torch.nn.functional.cross_entropy, [0]

    def cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss = real(*args, **kwargs)
        calls[0] += kwargs["reduction"] == "sum"
        return loss * value if calls[0] == call and kwargs["reduction"] == "sum" else loss

    monkeypatch.setattr(loop_module.F, "cross_entropy", cross_entropy)


def test_run_leaves_a_model_a_record_and_a_card(config: Config, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = config("optim.lr=1e-2", limits__max_steps=60)
    result = run(settings, folder)
    assert result.step == 60
    assert result.stopped_by is None
    rows = read_metrics(folder / "metrics.jsonl")
    train = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in train] == list(range(1, 61))
    assert train[-1]["loss"] < train[0]["loss"] - 0.2
    assert {"lr", "grad_norm", "tokens", "tokens_per_s", "wait_s", "memory_bytes", "wall_s"} <= set(train[0])
    final = rows[-1]
    assert final["kind"] == "eval"
    assert final["whole"]
    assert final["perplexity"] == pytest.approx(math.exp(final["loss"]))
    assert set(final["tags"]) == {"even", "odd"}
    assert sum(tag["n"] for tag in final["tags"].values()) == final["n"]
    # The next residue follows from its neighbour nine times in ten: the trigram sees that, frequencies do not.
    assert final["floor_trigram"] < final["floor_frequencies"] < 21
    model = MaskedLM.from_pretrained(folder)
    assert model.config == settings.model
    card = (folder / "model" / "README.md").read_text()
    for part in ("trigram", "| odd |", "manifest sha256", "tokens_per_batch: 256", "deepspeed"):
        assert part in card
    assert (folder / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").glob("events*"))
    assert len(list((folder / "checkpoints").glob("step-*"))) == 3
    facts = describe_run(folder)
    assert facts["state"] == "finished"
    assert facts["training"]["steps"] == 60
    json.dumps(facts)
    assert PretrainConfig.load(folder / "config.yaml") == settings


def test_stage_0_to_3_and_accumulation_learn_the_same(config: Config, tmp_path: Path) -> None:
    plain = ("model.dropout.residual=0", "model.dropout.embedding=0", "engine.accumulate=2", "evaluation.floors=false")
    losses = []
    for stage in range(4):
        folder = tmp_path / f"stage{stage}"
        run(config(*plain, f"engine.zero_stage={stage}", limits__max_steps=4), folder)
        rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "train"]
        losses.append([row["loss"] for row in rows])
        assert all(row["grad_norm"] > 0 for row in rows)
    # The stages only split the same float32 sums differently.
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)


def test_a_loss_that_is_no_number_names_the_step_and_keeps_the_state(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_at(monkeypatch, 6, math.nan)
    with pytest.raises(TrainingError, match=r"step 6: the loss is nan on rank 0, in a batch of seq.*before this step"):
        run(config("evaluation.floors=false", "checkpoints.keep=1"), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-0000000005").is_dir()
    # One more than are kept: a state that is on its way to infinity pushes no older one out.
    assert (tmp_path / "run" / "checkpoints" / "step-0000000003").is_dir()
    assert describe_run(tmp_path / "run")["state"] == "stopped by an error"
    monkeypatch.undo()
    assert run(config("evaluation.floors=false"), tmp_path / "run", resume=True).step == 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_that_is_no_number_stops_the_run(
    dtype: str, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = torch.nn.functional.cross_entropy, [0]

    def cross_entropy(logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = real(logits, *args, **kwargs)
        calls[0] += kwargs["reduction"] == "sum"
        # The root of 0 adds nothing to the loss, but its slope is infinite.
        return loss + (logits * 0).sum().sqrt() if calls[0] == 5 and kwargs["reduction"] == "sum" else loss

    monkeypatch.setattr(loop_module.F, "cross_entropy", cross_entropy)
    with pytest.raises(TrainingError, match=r"step 5: the gradient norm is .* though the loss is .*step-0000000003"):
        run(config("evaluation.floors=false", engine__dtype=dtype), tmp_path / "run")


def test_a_kill_during_the_last_evaluation_loses_no_step(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("protlat.training.evaluation.Validator.score", stop)
    with pytest.raises(KeyboardInterrupt):
        run(config("evaluation.floors=false", "evaluation.every_steps=100"), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-0000000008" / "manifest.json").is_file()


def test_exploding_gradient_stops_the_run(config: Config, tmp_path: Path) -> None:
    settings = config("guard.max_grad_norm=1e-6", "guard.patience=4", "evaluation.floors=false")
    with pytest.raises(TrainingError, match=r"step 4: exploding gradient: .*for 4 steps.*step-0000000003"):
        run(settings, tmp_path / "run")


def test_a_run_folder_is_not_overwritten_unless_asked(config: Config, tmp_path: Path) -> None:
    settings = config("evaluation.floors=false", limits__max_steps=1)
    folder = tmp_path / "run"
    run(settings, folder)
    with pytest.raises(OutputError, match="already holds a run; use --resume"):
        run(settings, folder)
    run(settings, folder, overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(OutputError, match="holds other files"):
        run(settings, tmp_path / "other", overwrite=True)
    with pytest.raises(CheckpointError, match="no run here to resume"):
        run(settings, tmp_path / "none", resume=True)
    assert run(settings, folder, resume=True).step == 1
    shutil.rmtree(folder / "checkpoints")
    assert run(settings, folder, resume=True).step == 1
    with pytest.raises(ConfigError, match="seed differs"):
        run(settings.model_copy(update={"seed": 5}), folder, resume=True)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    run(config("evaluation.floors=false"), folder)
    for name, keep in (("step-0000000008", 100), ("step-0000000006", None)):
        path = folder / "checkpoints" / name / "weights.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(bytes(content[:keep]))
    caplog.set_level("WARNING", logger="protlat")
    monitored = config("evaluation.floors=false", limits__max_steps=9)
    assert run(monitored, folder, resume=True).step == 9
    assert "step-0000000008/weights.safetensors: damaged" in caplog.text
    # A step that is reached again is saved again over what was damaged.
    read_checkpoint(folder / "checkpoints" / "step-0000000006")
    for damaged in (folder / "checkpoints").glob("step-*"):
        (damaged / "moments.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        run(monitored, folder, resume=True)


def test_warm_start_takes_weights_and_checks_the_alphabet(config: Config, tmp_path: Path) -> None:
    first = tmp_path / "first"
    run(config("evaluation.floors=false", limits__max_steps=2), first)
    settings = config("evaluation.floors=false", model=str(first), limits__max_steps=1)
    assert settings.warm_start == str(first)
    slow = settings.model_copy(update={"optim": settings.optim.model_copy(update={"lr": 1e-12})})
    run(slow, tmp_path / "second")
    before, after = MaskedLM.from_pretrained(first), MaskedLM.from_pretrained(tmp_path / "second")
    for name, value in after.state_dict().items():
        torch.testing.assert_close(value, before.state_dict()[name], rtol=0, atol=1e-8)
    other = tmp_path / "bytes"
    MaskedLM(settings.model, BYTES).save_pretrained(other)
    with pytest.raises(ConfigError, match=r"alphabet is bytes \(261 tokens\), but .* protein \(33 tokens\)"):
        run(settings.model_copy(update={"warm_start": str(other)}), tmp_path / "third")


def test_empty_and_missing_splits(config: Config, make_shards: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="no such shard folder"):
        run(config(shards=str(tmp_path / "nowhere")), tmp_path / "run")
    empty = make_shards(tmp_path / "empty", {"train": [], "valid": [("a", "t", "ACDEF")]})
    with pytest.raises(ShardError, match="train split is empty"):
        run(config(shards=str(empty)), tmp_path / "run")
    only = make_shards(tmp_path / "only", {"train": [("a", "", "ACDEFGHIKL" * 5), ("b", "", "M" * 30)]})
    result = run(config(shards=str(only), limits__max_steps=2), tmp_path / "run")
    assert "validation perplexity" not in result.summary
    assert "no validation split" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_damaged_shard_is_told_before_the_start(config: Config, toy_shards: Path, tmp_path: Path) -> None:
    shards = shutil.copytree(toy_shards, tmp_path / "shards")
    shard = next((shards / "train").glob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ShardError, match=r"shard-00000\.arrow: its checksum differs"):
        run(config(shards=str(shards)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_little_disk_is_told_before_the_start(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OutputError, match=r"a run with 3 checkpoints needs about .* MB, but only 1\.0 kB"):
        run(config(), tmp_path / "run")


def test_time_and_token_limits(config: Config, tmp_path: Path) -> None:
    settings = config("evaluation.floors=false", limits__max_steps=None, limits__max_tokens=1500)
    run(settings, tmp_path / "tokens")
    rows = [row for row in read_metrics(tmp_path / "tokens" / "metrics.jsonl") if row["kind"] == "train"]
    assert rows[-1]["tokens"] >= 1500 > rows[-2]["tokens"]
    settings = config("evaluation.floors=false", limits__max_steps=None, limits__max_minutes=0.01)
    run(settings, tmp_path / "time")
    rows = [row for row in read_metrics(tmp_path / "time" / "metrics.jsonl") if row["kind"] == "train"]
    assert rows[-1]["wall_s"] >= 0.6


def test_crops_fit_learned_positions(config: Config, tmp_path: Path) -> None:
    settings = config("evaluation.floors=false", "model.positions={kind: learned, max_length: 40}", limits__max_steps=2)
    assert settings.crop_length == 40
    assert run(settings, tmp_path / "run").summary["of them cropped"] > 1


def test_epochs_become_steps() -> None:
    plan = BatchPlan(np.full(10, 50), budget=100, seed=0)
    assert resolve_limits(LimitsConfig(), plan, 2).max_steps == 3
    assert resolve_limits(LimitsConfig(epochs=2), plan, 2).max_steps == 5
    assert resolve_limits(LimitsConfig(epochs=0.5), plan, 1).max_steps == 3
    assert resolve_limits(LimitsConfig(epochs=3, max_steps=4), plan, 1).max_steps == 4


def test_deepspeed_json_is_derived_and_conflicts_are_named(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(
        json.dumps({"gradient_clipping": 5.0, "bf16": {"enabled": True}, "comms_logger": {"enabled": False}})
    )
    with pytest.raises(ConfigError) as caught:
        run(config(engine__deepspeed_config=str(path)), tmp_path / "run")
    assert "gradient_clipping=5.0: set engine.clip instead" in str(caught.value)
    assert "set engine.dtype instead" in str(caught.value)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads(path: Path) -> None:
    assert load_config(path).limits != LimitsConfig()
