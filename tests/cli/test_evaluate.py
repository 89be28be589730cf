"""Options of `protlat evaluate` and `protlat predict variants` reach their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from protlat.cli.evaluate import evaluate
from protlat.cli.predict_variants import variants
from protlat.pipelines import evaluate as evaluate_pipeline
from protlat.pipelines import predict_variants as variants_pipeline
from protlat.pipelines.evaluate import EvaluateConfig
from protlat.pipelines.predict_variants import PredictVariantsConfig


@pytest.mark.parametrize("command", [evaluate, variants])
def test_help(command: Any) -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert "protlat" in result.output


def test_lists_of_tasks_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EvaluateConfig] = []
    monkeypatch.setattr(evaluate_pipeline, "run", lambda config: seen.append(config) or {})
    (tmp_path / "c.yaml").write_text("dtype: float32\nseed: 3\n")
    arguments = [
        "run",
        "-o",
        "out",
        "--tasks",
        "esol, a.csv",
        "--rows",
        "probe,majority",
        "--config",
        str(tmp_path / "c.yaml"),
    ]
    result = CliRunner().invoke(evaluate, [*arguments, "--reuse", "one", "--reuse", "two", "--set", "sample.train=9"])
    assert result.exit_code == 0, result.output
    [config] = seen
    assert (config.model, config.tasks, config.reuse) == ("run", ("esol", "a.csv"), ("one", "two"))
    # One order whatever the order on the command line; the file's values stay where no option was given.
    assert config.rows == ("majority", "probe")
    assert (config.dtype, config.seed, config.sample.train) == ("float32", 3, 9)


def test_options_of_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[PredictVariantsConfig] = []
    monkeypatch.setattr(variants_pipeline, "run", lambda config: seen.append(config) or {})
    arguments = [
        "wt.fasta",
        "-m",
        str(tmp_path),
        "-o",
        "-",
        "--mutants",
        "m.csv",
        "--score-column",
        "y",
        "--offset",
        "-3",
    ]
    result = CliRunner().invoke(
        variants, [*arguments, "--compare-column", "a", "--compare-column", "b", "--bad", "skip"]
    )
    assert result.exit_code == 0, result.output
    [config] = seen
    assert (config.input, config.offset, config.bad) == ("wt.fasta", -3, "skip")
    assert (config.score_column, config.compare_columns) == ("y", ("a", "b"))


@pytest.mark.parametrize(("command", "kind"), [(evaluate, EvaluateConfig), (variants, PredictVariantsConfig)])
def test_write_config_gives_a_file_that_loads(command: Any, kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    result = CliRunner().invoke(command, ["--write-config", str(path)])
    assert result.exit_code == 0, result.output
    assert kind.load(path) == kind()
