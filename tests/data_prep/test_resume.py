"""A prep that is killed and started again, and one that uses other workers, ends with the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protlat.data.shards import ShardReader
from protlat.data_prep import workers
from protlat.data_prep.config import PrepConfig
from protlat.data_prep.flow import run
from protlat.errors import OutputError, ProtlatError, SequenceError
from tests.data_prep.helpers import die, folder_bytes, random_fasta

SMALL = ["--set", "block_bytes=1500", "--set", "shard_tokens=4000", "--set", "bucket_rows=100"]


def command(source: Path, output: Path) -> list[str]:
    fractions = ["--valid-fraction", "0.2", "--cluster-method", "none"]
    return [sys.executable, "-m", "protlat", "prep", str(source), "-o", str(output), *fractions, *SMALL]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("reference")
    source = random_fasta(folder / "in.fasta", 3000)
    subprocess.run(command(source, folder / "out"), check=True, capture_output=True)
    return source, folder_bytes(folder / "out")


def kill_when(process: subprocess.Popen[bytes], folder: Path, pattern: str, n_files: int) -> bool:
    """Kill a process as soon as `n_files` match; False if it ended before."""
    while process.poll() is None:
        if len(list(folder.glob(pattern))) >= n_files:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.001)
    return False


@pytest.mark.parametrize(
    ("pattern", "n_files"),
    [
        (".prep/plan.json", 1),
        (".prep/pieces/*.json", 60),
        (".prep/shards/*.json", 10),
    ],
)
def test_killed_prep_resumes_to_the_same_bytes(
    reference: tuple[Path, dict[str, str]], tmp_path: Path, pattern: str, n_files: int
) -> None:
    source, expected = reference
    output = tmp_path / "out"
    process = subprocess.Popen(command(source, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert kill_when(process, output, pattern, n_files)
    assert not (output / "manifest.json").exists()
    again = subprocess.run(command(source, output), capture_output=True, text=True, check=True)
    if n_files > 1 or "shards" in pattern:
        assert "taking up the work of a stopped run" in again.stderr
    assert folder_bytes(output) == expected


def test_finished_pieces_are_not_made_again(tmp_path: Path) -> None:
    source, output = random_fasta(tmp_path / "in.fasta", 500), tmp_path / "out"
    process = subprocess.Popen(command(source, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not kill_when(process, output, ".prep/pieces/*.json", 5):
        pytest.skip("the machine was faster than the kill")
    pieces = sorted((output / ".prep" / "pieces").glob("*.json"))
    assert len(pieces) >= 5
    # A damaged piece is made again, the others are taken as they are.
    damaged = pieces[0].with_suffix(".arrow")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    subprocess.run(command(source, output), check=True, capture_output=True)
    subprocess.run(command(source, tmp_path / "fresh"), check=True, capture_output=True)
    assert folder_bytes(output) == folder_bytes(tmp_path / "fresh")


def test_an_older_result_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    source, output = random_fasta(tmp_path / "in.fasta", 50), tmp_path / "out"
    run(config(source, output))
    before = folder_bytes(output)
    broken = tmp_path / "broken.fasta"
    broken.write_text(">a\nMK-V\n")
    with pytest.raises(SequenceError, match="gap"):
        run(config(broken, output), overwrite=True)
    assert folder_bytes(output) == before


def test_a_stopped_publication_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_fasta(tmp_path / "in.fasta", 400)
    run(config(source, tmp_path / "whole"))
    expected = folder_bytes(tmp_path / "whole")
    output = tmp_path / "out"
    run(config(random_fasta(tmp_path / "old.fasta", 900, seed=5), output))
    for n_moves in (0, 3, 6):
        moves = iter(range(n_moves))
        real = os.replace

        def replace(a: Path, b: Path, moves: Iterator[int] = moves, real: Callable[..., None] = real) -> None:
            if Path(b).parent == output / "train" and next(moves, None) is None:
                raise KeyboardInterrupt
            real(a, b)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                run(config(source, output), overwrite=True)
        (output / ".prep" / "out" / "train" / ".tmp-1-shard-00000.arrow").write_bytes(b"half")
        run(config(source, output))
        assert folder_bytes(output) == expected
        run(config(tmp_path / "old.fasta", output), overwrite=True)


def config(source: Path, output: Path, **more: object) -> PrepConfig:
    values = {"inputs": [str(source)], "output": str(output), "block_bytes": 1500, "shard_tokens": 4000}
    return PrepConfig.parse(values | more)


def test_killed_prep_leaves_no_workers(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    source, output = random_fasta(tmp_path / "in.fasta", 3000), tmp_path / "out"
    arguments = [*command(source, output), "--workers", "2"]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list(output.glob(".prep/pieces/*.json"))) < 5:
        time.sleep(0.001)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    subprocess.run(arguments, check=True, capture_output=True)
    assert len(ShardReader(output, "train")) > 0


def test_a_worker_that_is_killed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_fasta(tmp_path / "in.fasta", 50)
    monkeypatch.setattr(workers, "_run", die)
    with pytest.raises(ProtlatError, match="a worker process was killed from outside"):
        run(config(source, tmp_path / "out", workers=2))


def test_files_that_a_pattern_matches_anew_are_refused(tmp_path: Path) -> None:
    random_fasta(tmp_path / "a.fasta", 20)
    run(config(tmp_path / "*.fasta", tmp_path / "out"))
    random_fasta(tmp_path / "b.fasta", 20, seed=1)
    with pytest.raises(OutputError, match="was made from other files"):
        run(config(tmp_path / "*.fasta", tmp_path / "out"))


def test_workers_do_not_change_a_byte(tmp_path: Path) -> None:
    source = random_fasta(tmp_path / "in.fasta", 300)
    run(config(source, tmp_path / "one", workers=1))
    run(config(source, tmp_path / "three", workers=3))
    assert folder_bytes(tmp_path / "one") == folder_bytes(tmp_path / "three")


def test_same_command_again_does_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = random_fasta(tmp_path / "in.fasta", 50)
    run(config(source, tmp_path / "out"))
    before = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    run(config(source, tmp_path / "out"))
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == before


def test_another_command_is_refused_unless_overwritten(tmp_path: Path) -> None:
    source = random_fasta(tmp_path / "in.fasta", 50)
    run(config(source, tmp_path / "out"))
    other = config(source, tmp_path / "out", min_length=50)
    with pytest.raises(OutputError, match=r"holds shards of another prep command \(differs in min_length\)"):
        run(other)
    manifest = run(other, overwrite=True)
    assert manifest.parameters["min_length"] == 50


def test_changed_input_is_refused(tmp_path: Path) -> None:
    source = random_fasta(tmp_path / "in.fasta", 50)
    run(config(source, tmp_path / "out"))
    random_fasta(source, 50, seed=1)
    with pytest.raises(OutputError, match="has changed since"):
        run(config(source, tmp_path / "out"))


def test_unfinished_work_of_another_command_is_refused(tmp_path: Path) -> None:
    source, output = random_fasta(tmp_path / "in.fasta", 50), tmp_path / "out"
    (output / ".prep").mkdir(parents=True)
    (output / ".prep" / "plan.json").write_text(json.dumps({"fingerprint": "other", "sources": []}))
    with pytest.raises(OutputError, match="unfinished work of another prep command"):
        run(config(source, output))


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    source = random_fasta(tmp_path / "in.fasta", 50)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="not empty"):
        run(config(source, tmp_path / "out"))
    assert (tmp_path / "out" / "thesis.txt").exists()
