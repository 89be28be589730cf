"""The command group: help, errors, exit codes, start-up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from protlat import __version__
from protlat.cli.main import VERBS, main


def call(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    out = capsys.readouterr()
    return int(stop.value.code or 0), out.out, out.err


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(verb, "--help", capsys=capsys)
    assert code == 0
    assert "Usage: protlat" in out


def test_version_and_group_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert __version__ in call("--version", capsys=capsys)[1]
    out = call("--help", capsys=capsys)[1]
    assert all(verb in out for verb in VERBS)


def test_unknown_verb_and_option_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call("embedd", capsys=capsys)
    assert code == 2
    assert "Known: prep, pretrain, ablate, embed" in err
    assert call("info", "--colour", capsys=capsys)[0] == 2


def test_run_errors_are_one_line_and_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call("pretrain", str(tmp_path / "absent"), "-o", str(tmp_path / "run"), capsys=capsys)
    assert code == 1
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_file_fault_of_any_library_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device", "out.h5")

    monkeypatch.setattr("protlat.cli.main.setup_logging", full)
    code, _, err = call("info", "x", capsys=capsys)
    assert (code, err) == (1, "error: [Errno 28] No space left on device: 'out.h5'\n")


@pytest.mark.parametrize("verb", ["--help", *(f"{verb} --help" for verb in VERBS)])
def test_help_does_not_import_what_computes(verb: str) -> None:
    """Start-up stays instant as long as none of these is imported for a help page."""
    code = (
        "import sys\nfrom protlat.cli.main import main\n"
        f"try: main({verb.split()!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'deepspeed', 'pyarrow', 'h5py', 'sklearn', 'Bio'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_dash_m(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "protlat", "info", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
