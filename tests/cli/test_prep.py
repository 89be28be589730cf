"""The options of `protlat prep` reach the settings, and its errors are single lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protlat.cli.main import main
from protlat.cli.prep import prep
from protlat.data_prep.config import PrepConfig


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return int(stopped.value.code or 0)


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "in.fasta"
    path.write_text(">t1_1 first\nMKVLU\n>t1_2\nMKV-L\n>t2_1\nMKVLLAAGIV\n")
    return path


def test_options_reach_the_manifest(fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--unknown",
        "keep",
        "--gaps",
        "strip",
        "--min-length",
        "4",
        "--max-length",
        "8",
        "--tag-pattern",
        "^(t[0-9])_",
    ]
    code = call(
        "prep", str(fasta), "-o", str(tmp_path / "out"), *options, "--set", "shard_tokens=100", "--workers", "1"
    )
    assert code == 0
    parameters = json.loads((tmp_path / "out" / "manifest.json").read_text())["parameters"]
    assert parameters["policy"] == {"unknown": "keep", "gaps": "strip", "stops": "map"}
    assert (parameters["min_length"], parameters["max_length"], parameters["shard_tokens"]) == (4, 8, 100)
    captured = capsys.readouterr()
    assert captured.out == ""
    for part in ("records read", "too long 1", "gaps stripped", "peak memory", "residues/s"):
        assert part in captured.err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--gaps", "error"], 1, "t1_2: gap - at position 4"),
        (["--gaps", "perhaps"], 2, "is not one of 'error', 'strip', 'skip'"),
        (["--overlap", "3"], 2, "overlap needs fixed_length"),
        (["--set", "min_lenght=3"], 2, "did you mean 'min_length'"),
        (["--valid-fraction", "1.5"], 2, "valid_fraction"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    assert call("prep", str(fasta), "-o", str(tmp_path / "out"), *options) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_input_and_output_are_needed(fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("prep", str(fasta)) == 2
    assert call("prep", "-o", str(tmp_path / "out")) == 2
    assert "no output folder" in (text := capsys.readouterr().err)
    assert "no input" in text


def test_config_file_and_options_together(fasta: Path, tmp_path: Path) -> None:
    config = tmp_path / "prep.yaml"
    config.write_text(f"inputs: ['{fasta}']\nmin_length: 5\npolicy: {{gaps: strip}}\n")
    assert call("prep", "--config", str(config), "-o", str(tmp_path / "out"), "--min-length", "6") == 0
    parameters = json.loads((tmp_path / "out" / "manifest.json").read_text())["parameters"]
    assert parameters["min_length"] == 6
    assert parameters["policy"]["gaps"] == "strip"


def test_every_option_is_a_setting() -> None:
    options = {name for parameter in prep.params for name in [parameter.name]}
    settings = set(PrepConfig.model_fields) | {"unknown", "gaps", "stops"}
    settings |= set(type(PrepConfig().split).model_fields)
    extra = {"more_inputs", "format_", "overwrite", "config_path", "overrides", "write_config"}
    assert options - extra <= settings


def test_write_config_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "prep.yaml"
    assert call("prep", "--write-config", str(path)) == 0
    assert PrepConfig.load(path) == PrepConfig()
    assert "# Shorter records are left out; tokens." in path.read_text()
