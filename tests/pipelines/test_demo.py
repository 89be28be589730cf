"""The demonstration, small: every command runs and every file that it names is there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from protlat.cli.main import main
from protlat.errors import OutputError
from protlat.pipelines.demo import DemoConfig, run


def test_demo_makes_what_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["demo", "-o", str(tmp_path / "demo"), "--max-steps", "4"])
    assert stop.value.code == 0
    listed = capsys.readouterr().out.split("made:")[1].split("\n")
    paths = [Path(line.split()[-1]) for line in listed if line.strip()]
    assert len(paths) == 9
    assert all(path.exists() for path in paths)
    pictures = [path for path in paths if path.suffix == ".png"]
    assert len(pictures) == 3
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000 for path in pictures)


def test_demo_leaves_other_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("final version")
    with pytest.raises(OutputError, match="not an earlier demonstration"):
        run(DemoConfig(output=str(tmp_path)), lambda _words: None)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_printed_commands_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):
        pass

    def stop(_words: list[str]) -> None:
        raise Stopped

    shown: list[str] = []
    monkeypatch.setattr("protlat.pipelines.demo.log.info", lambda text, *values: shown.append(text % values))
    with pytest.raises(Stopped):
        run(DemoConfig(output=str(tmp_path / "demo")), stop)
    assert r"^(.+)_\d+$" in shlex.split(shown[-1])
