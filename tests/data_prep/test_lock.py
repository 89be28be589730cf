"""The output folder: one run at a time, and one clear line when it cannot be used."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from protlat.data.shards import read_manifest
from protlat.data_prep import flow
from protlat.data_prep.config import PrepConfig
from protlat.data_prep.lock import own_folder
from protlat.errors import OutputError, SequenceError
from tests.data_prep.helpers import random_fasta


def config(tmp_path: Path, output: Path) -> PrepConfig:
    source = tmp_path / "in.fasta"
    if not source.exists():
        random_fasta(source, 20)
    return PrepConfig.parse({"inputs": [str(source)], "output": str(output)})


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with own_folder(output), pytest.raises(OutputError, match=r"out: another protlat prep is at work in it"):
        flow.run(config(tmp_path, output))
    assert flow.run(config(tmp_path, output)).splits["train"].n_sequences == 20


@pytest.mark.parametrize("below", ["", "below"])
def test_a_file_as_output_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match=r"is a file|cannot be made"):
        flow.run(config(tmp_path, tmp_path / "file" / below))
    assert (tmp_path / "file").read_text() == "x"


def test_a_full_disk_is_told_and_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(flow, "publish", full)
        with pytest.raises(OutputError, match=r"out: cannot be written: No space left on device; once that is mended"):
            flow.run(config(tmp_path, tmp_path / "out"))
    flow.run(config(tmp_path, tmp_path / "out"))
    assert read_manifest(tmp_path / "out").splits["train"].n_sequences == 20


def test_a_failed_run_leaves_no_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "in.fasta").write_text("no sequences here\n")
    with pytest.raises(SequenceError, match="not FASTA"):
        flow.run(config(tmp_path, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
