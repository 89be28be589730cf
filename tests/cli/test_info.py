"""`protlat info` on shards and on what it does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protlat.cli.info import print_tables
from protlat.cli.main import main
from protlat.data_prep.config import PrepConfig
from protlat.data_prep.flow import run


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return int(stopped.value.code or 0)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    source = tmp_path / "in.fasta"
    source.write_text("".join(f">a_{i}\n{'ACDEFGHIKL'[i % 10] * (i + 1)}\n" for i in range(120)))
    run(PrepConfig(inputs=(str(source),), output=str(tmp_path / "out"), tag_pattern="^(a)_"))
    return tmp_path / "out"


def test_tables(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("info", str(shards)) == 0
    out = capsys.readouterr().out
    for part in ("protlat shards", "120", "length histogram", "########", "policies", "sources"):
        assert part in out


def test_json(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("info", str(shards), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["splits"]["train"]["sequences"] == 120


def test_unknown_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("info", str(tmp_path)) == 1
    assert "neither shards (manifest.json), a run" in capsys.readouterr().err
    (tmp_path / "a.xyz").write_text("")
    assert call("info", str(tmp_path / "a.xyz")) == 1
    assert "not a file that info knows" in capsys.readouterr().err


def test_unfinished_shards_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".prep").mkdir()
    assert call("info", str(tmp_path)) == 1
    assert "run the same command again" in capsys.readouterr().err


def test_markup_in_values_is_shown_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(
        {
            "path": "[bold]x[/bold]",
            "share": 0.123456789,
            "none": None,
            "list": [1, 2000],
            "x histogram": [["a", 0], ["b", 3]],
        }
    )
    out = capsys.readouterr().out
    assert "[bold]x[/bold]" in out
    assert "0.123457" in out
    assert "1, 2,000" in out


def test_missing_shard_files_are_told(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shards / "train" / "shard-00000.arrow").unlink()
    assert call("info", str(shards)) == 0
    assert "train/shard-00000.arrow is missing" in capsys.readouterr().out


def test_a_path_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("info", str(tmp_path / "no")) == 1
    assert capsys.readouterr().err.strip().endswith("no: no such file or folder")


def test_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text(
        "seq,label\n" + "".join(f"{'ACDEFGHIKL'[i % 10] * (i + 9)},{i % 2}\n" for i in range(40))
    )
    assert call("info", str(tmp_path / "a.csv")) == 0
    out = capsys.readouterr().out
    for part in ("protlat task", "sequence_class", "splits", "labels", "checks", "40"):
        assert part in out
    (tmp_path / "a.yaml").write_text("name: a\ntype: sequence_value\nsources: [{kind: table, path: a.csv}]\n")
    assert call("info", str(tmp_path / "a.yaml"), "--json", "--data", str(tmp_path)) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "sequence_value"


def test_tasks_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("info", "esol", "--data", str(tmp_path)) == 1
    assert "no such file; --data names the folder" in capsys.readouterr().err
    (tmp_path / "a.yaml").write_text("name: a\ntype: sequence_value\n")
    assert call("info", str(tmp_path / "a.yaml")) == 2
    assert "sources: Field required" in capsys.readouterr().err
    assert call("info", "secundary_structure") == 1
    assert "did you mean the task 'secondary_structure'?" in capsys.readouterr().err
