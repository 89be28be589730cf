from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from protlat.cli.predict import masked_values, predict
from protlat.pipelines.predict import PredictMaskedConfig


def test_the_command_line_reaches_the_config() -> None:
    given = {"positions": (5, 10), "unknown": "keep", "gaps": None, "stops": None, "device": "auto", "dtype": "float32"}
    config = PredictMaskedConfig.load(None, (), **masked_values(("a.fa",), given))
    assert config.positions == (5, 10)
    assert config.policy.unknown == "keep"
    assert (config.inputs, config.device, config.dtype) == (("a.fa",), "auto", "float32")


@pytest.mark.parametrize("verb", [["--help"], ["masked", "--help"]])
def test_help(verb: list[str]) -> None:
    result = CliRunner().invoke(predict, verb)
    assert result.exit_code == 0
    assert "masked" in result.output


def test_write_config_gives_a_file_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "predict.yaml"
    result = CliRunner().invoke(predict, ["masked", "--write-config", str(path)])
    assert result.exit_code == 0, result.output
    assert PredictMaskedConfig.load(path) == PredictMaskedConfig()
