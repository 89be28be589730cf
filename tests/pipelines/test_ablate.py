"""`protlat ablate`: the same data for every variant, matched sizes, an honest report, and going on after a stop."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError, OutputError
from protlat.models import language_model_class, preset_names
from protlat.pipelines.ablate import run
from protlat.pipelines.ablate_config import AblateConfig, load_ablation, merged, runs_of
from protlat.pipelines.ablate_report import summarise

CONFIGS = Path(__file__).parents[2] / "configs" / "ablate"
MODEL = {
    "d_model": 16,
    "n_layers": 1,
    "head_dim": 8,
    "attention": [{"kind": "window", "n_heads": 1, "radius": 8}, {"kind": "efficient", "n_heads": 1}],
    "local_conv": None,
}


def count(model: Any) -> int:
    return language_model_class(model)(model, PROTEIN).n_parameters()


def config(shards: str | Path, **changes: Any) -> AblateConfig:
    values = {
        "shards": str(shards),
        "base": {
            "model": MODEL,
            "batching": {"tokens_per_batch": 256},
            "limits": {"max_steps": 6},
            "schedule": {"kind": "wsd"},
            "evaluation": {"every_steps": 2, "max_tokens": 500},
            "engine": {"dtype": "float32"},
        },
        "variants": {"plain": {}, "gate": {"gate": {"output": "channel"}}},
        "timing": {"rounds": 1},
    }
    return AblateConfig.parse({**values, **changes})


def test_changes_are_laid_over_the_base() -> None:
    base = {"a": {"kind": "x", "n": 1}, "b": [1, 2], "c": {"d": 1, "e": 2}}
    assert merged(base, {"a": {"n": 2}, "b": [3], "c": {"d": 5}}) == {
        "a": {"kind": "x", "n": 2}, "b": [3], "c": {"d": 5, "e": 2},
    }  # fmt: skip
    assert merged(base, {"a": {"kind": "y"}})["a"] == {"kind": "y"}
    assert base["a"] == {"kind": "x", "n": 1}


def test_parameters_are_matched_by_the_feed_forward() -> None:
    variants = {"plain": {}, "glu": {"feed_forward": {"kind": "glu"}}}
    settings = config("s", base={"model": "tiny"}, variants=variants)
    runs = runs_of(settings, len(PROTEIN), count)
    sizes = [count(value.model) for value in runs.values()]
    assert abs(sizes[1] / sizes[0] - 1) < settings.tolerance
    assert runs["glu"].model.feed_forward.kind == "glu"
    assert runs["glu"].model.feed_forward.expansion < 4
    assert runs["plain"].optim == runs["glu"].optim


def test_sizes_that_cannot_be_matched_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"variants.deep: .* parameters, \+\d+.*give it another size"):
        runs_of(config("s", variants={"plain": {}, "deep": {"n_layers": 20}}), len(PROTEIN), count)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": {"only": {}}}, "variants"),
        ({"seeds": [1]}, "seeds"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"variants": {"a": {}, "b/c": {}}}, "made of letters"),
    ],
)
def test_settings_that_make_no_comparison(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config("s", **changes)


def test_a_typo_in_a_variant_is_named() -> None:
    with pytest.raises(ConfigError, match=r"variants.gate: gate.ouput: unknown key; did you mean 'output'"):
        runs_of(config("s", variants={"plain": {}, "gate": {"gate": {"ouput": "head"}}}), len(PROTEIN), count)


def test_runs_report_and_resume(toy_shards: Path, tmp_path: Path) -> None:
    settings = config(toy_shards)
    account = run(settings, tmp_path / "out", jobs=2, threads=1)
    assert account["runs"] == account["finished"] == 4
    results = json.loads((tmp_path / "out" / "results.json").read_text())["variants"]
    assert set(results) == {"plain", "gate"}
    assert results["plain"]["difference"] == 0
    gate = results["gate"]
    expected = [gate["loss_by_seed"][s] - results["plain"]["loss_by_seed"][s] for s in ("0", "1")]
    assert gate["difference_by_seed"] == pytest.approx(expected)
    assert gate["difference"] != 0
    assert gate["peak_memory_bytes"] > 50e6
    # The same data in the same order: the numbers of tokens read agree evaluation by evaluation.
    assert [x for x, _ in gate["curves"]["0"]] == [x for x, _ in results["plain"]["curves"]["0"]]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| gate |" in report
    assert (tmp_path / "out" / "curves.png").stat().st_size > 10_000
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "runs").rglob("metrics.jsonl")}
    # One run is lost: only it is trained again.
    (tmp_path / "out" / "runs" / "gate-seed1" / "ablation_run.json").unlink()
    run(settings, tmp_path / "out", threads=1)
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "runs").rglob("metrics.jsonl")}
    assert {p.parent.name for p in before if before[p] != after[p]} <= {"gate-seed1"}
    again = json.loads((tmp_path / "out" / "results.json").read_text())["variants"]
    assert again["gate"]["loss_by_seed"] == gate["loss_by_seed"]
    with pytest.raises(OutputError, match="holds a run with other settings"):
        run(config(toy_shards, base={**settings.base, "optim": {"lr": 1e-4}}), tmp_path / "out")


def test_a_run_that_fails_is_named_and_the_others_go_on(toy_shards: Path, tmp_path: Path) -> None:
    settings = config(toy_shards)
    (tmp_path / "out" / "runs").mkdir(parents=True)
    for name in ("plain-seed0", "gate-seed0", "gate-seed1"):
        (tmp_path / "out" / "runs" / name).write_text("a file where the run folder should be")
    account = run(settings, tmp_path / "out", threads=1)
    assert account["failed"] == "plain, seed 0, gate, seed 0, gate, seed 1"
    assert account["finished"] == 1


def record(variant: str, seed: int, curve: list[tuple[int, float]], final: float) -> dict[str, Any]:
    rows = [{"whole": False, "tokens": x, "loss": y} for x, y in curve]
    rows.append({"whole": True, "tokens": curve[-1][0], "loss": final, "accuracy": 0.5})
    return {
        "variant": variant, "seed": seed, "parameters": 10, "peak_memory_bytes": 1, "rows": rows,
        "tokens": curve[-1][0], "train_s": 1.0,
    }  # fmt: skip


def test_loss_at_equal_time_is_read_before_the_rate_falls() -> None:
    settings = config("s", variants={"fast": {}, "slow": {}})
    curve = [(0, 3.0), (50, 2.0), (100, 1.0)]
    records = [record(name, seed, curve, 0.9) for name in ("fast", "slow") for seed in (0, 1)]
    summary = summarise(settings, records, {"seconds_per_token": {"fast": 1.0, "slow": 2.0}})
    # wsd with a decay of 0.2: the fast one stands at token 80 then, the slow one at token 40.
    assert summary["fast"]["equal_time_s"] == pytest.approx(80)
    assert summary["fast"]["loss_at_equal_time"] == pytest.approx(1.4)
    assert summary["slow"]["loss_at_equal_time"] == pytest.approx(2.2)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_ablations_are_whole(path: Path) -> None:
    from protlat.alphabet import BYTES

    values = yaml.safe_load(path.read_text())
    alphabet = BYTES if "books" in path.stem else PROTEIN

    def sized(model: Any) -> int:
        import torch

        with torch.device("meta"):
            return language_model_class(model)(model, alphabet).n_parameters()

    settings = load_ablation(path)
    assert len(runs_of(settings, len(alphabet), sized)) == len(values["variants"])
    assert "tiny" in preset_names()


def test_a_stopped_ablation_takes_its_runs_along(toy_shards: Path, tmp_path: Path) -> None:
    """Else they would train on, beside those of the command given again, in the same folders."""
    base = {**config(toy_shards).base, "limits": {"max_steps": 100_000}}
    settings = tmp_path / "ablation.yaml"
    settings.write_text(config(toy_shards, base=base).to_yaml())
    command = [sys.executable, "-m", "protlat", "ablate", str(settings), "-o", str(tmp_path / "out"), "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "out" / "runs" / "plain-seed0" / "metrics.jsonl"
    deadline = time.monotonic() + 100
    while not (metrics.is_file() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.terminate()
    assert process.wait(60) == 143
    size = metrics.stat().st_size
    time.sleep(1.5)
    assert metrics.stat().st_size == size
    assert list((metrics.parent / "checkpoints").glob("*"))
