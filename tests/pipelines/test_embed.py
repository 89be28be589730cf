"""`protlat embed` end to end: order, policies, resume, refusals, several processes."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.errors import ConfigError, OutputError, SequenceError, ShardError
from protlat.inference import load_embeddings
from protlat.inference.reader import read_metadata
from protlat.models import MaskedLM, ModelConfig
from protlat.pipelines.embed import EmbedConfig, run


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    # A run folder: its name, not "model", is the model's.
    folder = tmp_path_factory.mktemp("runs") / "toy-run"
    MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).save_pretrained(folder / "model")
    return folder


def random_fasta(path: Path, n: int = 60, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    residues = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    records = (f">p{i} protein {i}\n{''.join(rng.choice(residues, rng.integers(1, 80)))}\n" for i in range(n))
    path.write_text("".join(records))
    return path


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    return random_fasta(tmp_path / "in.fasta")


def config(model: Path, source: Any, output: Path, **changes: Any) -> EmbedConfig:
    # Few tokens a batch make many parts of a small input.
    values = {"inputs": [str(source)], "model": str(model), "outputs": [str(output)], "toks_per_batch": 32}
    return EmbedConfig.load(None, (), **{**values, "dtype": "float32", "device": "cpu", **changes})


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_rows_are_residues_and_the_order_is_the_inputs(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    rows = run(config(model_folder, fasta, tmp_path / "x.h5", vectors__include=["mean", "per_tok"]))
    text = fasta.read_text().split(">")[1:]
    lengths = {record.split()[0]: len(record.splitlines()[1]) for record in text}
    with (
        load_embeddings(tmp_path / "x.h5", "per_tok") as per_residue,
        load_embeddings(tmp_path / "x.h5", "mean") as mean,
    ):
        assert per_residue.identifiers == list(lengths)
        for (name, array), (_, average) in zip(per_residue, mean, strict=True):
            assert array.shape == (lengths[name], 16)
            np.testing.assert_allclose(average, array.mean(0), rtol=1e-5, atol=1e-6)
    assert rows["sequences in"] == rows["sequences out"] == 60
    assert rows["residues out"] == sum(lengths.values())
    assert not (tmp_path / "x.h5.partial").exists()
    metadata = read_metadata(tmp_path / "x.h5")
    assert metadata["model_name"] == "toy-run"
    assert metadata["settings"]["torch"] == torch.__version__
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.fasta", "x.h5"]


def test_parts_and_batches_change_nothing_beyond_rounding(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    for budget in (1, 10_000):
        run(config(model_folder, fasta, tmp_path / f"{budget}.h5", toks_per_batch=budget))
    with load_embeddings(tmp_path / "1.h5") as one, load_embeddings(tmp_path / "10000.h5") as other:
        for name, vector in one:
            np.testing.assert_allclose(vector, other[name], rtol=0, atol=1e-5)


def test_awkward_records_are_kept_apart_and_counted(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">a/b one\nMKTU\n>a/b two\nmk<mask>t\n>empty\n>long\n" + "ACDEFGHIKL" * 5 + "\n>stop\nMKT*\n")
    rows = run(
        config(
            model_folder,
            source,
            tmp_path / "x.h5",
            vectors__include=["per_tok"],
            long__policy="cut",
            long__max_length=12,
        )
    )
    with load_embeddings(tmp_path / "x.h5") as vectors:
        assert {name: len(array) for name, array in vectors} == {"a/b": 4, "a/b#2": 4, "long": 12, "stop": 3}
    assert rows["sequences in"] == 5
    assert rows["sequences out"] == 4
    assert rows["duplicate identifiers"] == 1
    assert rows["cut"] == "1 (38 residues)"
    assert rows["skipped"] == 1
    assert rows["unknown residues"] == "1 (U 1)"
    left_out = (tmp_path / "x.skipped.tsv").read_text().splitlines()
    assert left_out[0] == "file\tline\tidentifier\treason"
    assert [line.split("\t")[1:3] for line in left_out[1:]] == [["5", "empty"], ["6", "long"]]
    assert "the first 12 of 50 residues kept" in left_out[2]


def test_long_sequences_skip_or_window_only_when_asked(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">short\nMKT\n>long\n" + "ACDEFGHIKL" * 20 + "\n")
    run(config(model_folder, source, tmp_path / "whole.h5", vectors__include=["per_tok"]))
    rows = run(config(model_folder, source, tmp_path / "skip.h5", long__policy="skip", long__max_length=100))
    assert rows["skipped"] == 1
    with load_embeddings(tmp_path / "skip.h5") as vectors:
        assert vectors.identifiers == ["short"]
    window = {"long__policy": "window", "long__window": 50, "long__overlap": 10}
    rows = run(config(model_folder, source, tmp_path / "window.h5", vectors__include=["per_tok"], **window))
    assert rows["embedded in windows"] == 1
    with load_embeddings(tmp_path / "whole.h5") as whole, load_embeddings(tmp_path / "window.h5") as windowed:
        assert whole["long"].shape == windowed["long"].shape == (200, 16)
        assert not np.array_equal(whole["long"], windowed["long"])
        np.testing.assert_allclose(whole["short"], windowed["short"], rtol=0, atol=1e-6)


KILLED_RUN = """
import os, signal, sys
from protlat.inference.parts import WorkFolder
from protlat.cli.main import main
write = WorkFolder.write
def killed(self, index, rows, finished):
    for count, place in enumerate(write(self, index, rows, finished)):
        if index == 2 and count == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield place
WorkFolder.write = killed
main(sys.argv[1:])
"""


def command(model: Path, source: Path, output: Path, *more: str) -> list[str]:
    return [
        "embed", str(source), "-m", str(model), "-o", str(output), "--toks-per-batch", "32", "--dtype", "float32",
        "--device", "cpu", "--threads", "1", "--include", "mean", "per_tok", *more,
    ]  # fmt: skip


def test_a_killed_run_resumes_to_an_identical_file(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.h5"
    arguments = command(model_folder, fasta, output)
    killed = subprocess.run([sys.executable, "-c", KILLED_RUN, *arguments], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -9, killed.stderr
    assert not output.exists()
    done = sorted(p.name for p in (tmp_path / "x.h5.partial").glob("part-*.json"))
    assert done == ["part-000000.json", "part-000001.json"]

    values = {"vectors__include": ["mean", "per_tok"]}
    with pytest.raises(OutputError, match="unfinished run: go on with --resume"):
        run(config(model_folder, fasta, output, **values))
    first = (tmp_path / "x.h5.partial" / "part-000000.mean.2.bin").stat().st_mtime_ns
    parts_before = {}

    from protlat.inference.parts import WorkFolder

    original = WorkFolder.remove
    try:
        WorkFolder.remove = lambda self: (  # type: ignore[method-assign]
            parts_before.update({p.name: p.stat().st_mtime_ns for p in self.folder.iterdir()}),
            original(self),
        )[1]
        run(config(model_folder, fasta, output, resume=True, **values))
    finally:
        WorkFolder.remove = original  # type: ignore[method-assign]
    assert parts_before["part-000000.mean.2.bin"] == first, "finished parts must not be computed again"
    run(config(model_folder, fasta, tmp_path / "straight.h5", **values))
    assert sha256(output) == sha256(tmp_path / "straight.h5")


KILLED_AT_THE_END = """
import os, signal, sys
from protlat.inference.writers.hdf5 import HDF5Writer
from protlat.cli.main import main
add, rows = HDF5Writer.add, []
def killed(self, row, vector):
    add(self, row, vector)
    rows.append(row)
    if len(rows) == 30:
        os.kill(os.getpid(), signal.SIGKILL)
HDF5Writer.add = killed
main(sys.argv[1:])
"""


def test_a_run_killed_while_writing_the_file_resumes(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.h5"
    arguments = command(model_folder, fasta, output)
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_THE_END, *arguments], capture_output=True, timeout=120)
    assert killed.returncode == -9
    assert not output.exists()
    values = {"vectors__include": ["mean", "per_tok"]}
    run(config(model_folder, fasta, output, resume=True, **values))
    run(config(model_folder, fasta, tmp_path / "straight.h5", **values))
    assert sha256(output) == sha256(tmp_path / "straight.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.fasta", "straight.h5", "x.h5"]


def test_stale_work_and_outputs_are_refused(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.h5"
    run(config(model_folder, fasta, output))
    old = sha256(output)
    with pytest.raises(OutputError, match=r"x\.h5 exists; replace it with --overwrite"):
        run(config(model_folder, fasta, output))
    # Complete and the same: nothing to do.
    run(config(model_folder, fasta, output, resume=True))
    assert sha256(output) == old

    other_model = tmp_path / "other"
    torch.manual_seed(8)
    MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).save_pretrained(other_model)
    other_input = random_fasta(tmp_path / "other.fasta", seed=1)
    for model, source, changes, named in (
        (other_model, fasta, {}, "model_hash"),
        (model_folder, other_input, {}, "input_sha256"),
        (model_folder, fasta, {"vectors__store": "float16"}, 'store: "float32" there, "float16" now'),
        (model_folder, fasta, {"vectors__repr_layers": [0]}, "columns"),
    ):
        with pytest.raises(OutputError, match=f"belongs to another run.*{named}"):
            run(config(model, source, output, resume=True, **changes))
        assert sha256(output) == old
    run(config(model_folder, other_input, output, overwrite=True))
    assert sha256(output) != old


def test_stale_parts_are_refused(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.h5"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_RUN, *command(model_folder, fasta, output)], capture_output=True, timeout=120
    )
    assert killed.returncode == -9
    with pytest.raises(OutputError, match=r"x\.h5\.partial belongs to another run \(columns"):
        run(config(model_folder, fasta, output, resume=True))
    run(config(model_folder, fasta, output, overwrite=True))
    assert output.exists()


def test_several_outputs_in_one_pass(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    outputs = [str(tmp_path / name) for name in ("x.h5", "x.parquet")]
    rows = run(
        config(model_folder, fasta, "", outputs=outputs, vectors__include=["mean", "per_tok"], vectors__store="float16")
    )
    with load_embeddings(outputs[0], "mean") as one, load_embeddings(outputs[1]) as other:
        assert one.identifiers == other.identifiers
        for name, vector in one:
            assert vector.dtype == np.float16
            np.testing.assert_array_equal(vector, other[name])
    assert "x.parquet" in rows["written"]


def test_nothing_to_embed_and_missing_settings_are_errors(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(">a\n>b\n")
    with pytest.raises(SequenceError, match="no sequence to work on"):
        run(config(model_folder, source, tmp_path / "x.h5"))
    with pytest.raises(ConfigError, match=r"inputs \(INPUT\): nothing given"):
        run(EmbedConfig(model=str(model_folder), outputs=("x.h5",)))
    with pytest.raises(SequenceError, match=r"pertok: no such file or folder; did you mean --include per_tok\?"):
        run(config(model_folder, "pertok", tmp_path / "x.h5"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.fasta"]


def test_a_model_with_learned_positions_tells_its_limit_first(tmp_path: Path) -> None:
    torch.manual_seed(7)
    settings = {"d_model": 16, "n_layers": 1, "head_dim": 8, "positions": {"kind": "learned", "max_length": 22}}
    MaskedLM(ModelConfig.parse(settings), PROTEIN).save_pretrained(tmp_path / "model")
    source = tmp_path / "in.fasta"
    source.write_text(">fits\n" + "ACDEFGHIKL" * 2 + "\n>long\n" + "ACDEFGHIKL" * 5 + "\n")
    with pytest.raises(
        SequenceError, match=r"'long' has 50 residues, but this model has learned positions for at most 20"
    ):
        run(config(tmp_path / "model", source, tmp_path / "x.h5", toks_per_batch=8192))
    window = {"long__policy": "window", "long__window": 20, "long__overlap": 5}
    run(config(tmp_path / "model", source, tmp_path / "x.h5", toks_per_batch=8192, **window))
    with load_embeddings(tmp_path / "x.h5") as vectors:
        assert vectors.identifiers == ["fits", "long"]


def test_standard_input_is_embedded_and_its_copy_removed(
    model_folder: Path, fasta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(fasta) as handle:
        monkeypatch.setattr(sys, "stdin", handle)
        run(config(model_folder, "-", tmp_path / "piped.h5"))
    run(config(model_folder, fasta, tmp_path / "file.h5"))
    with load_embeddings(tmp_path / "piped.h5") as piped, load_embeddings(tmp_path / "file.h5") as file:
        assert piped.identifiers == file.identifiers
        assert piped.metadata["settings"] == file.metadata["settings"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file.h5", "in.fasta", "piped.h5"]


def test_shards_give_what_their_fasta_gives(model_folder: Path, tmp_path: Path) -> None:
    from protlat.data_prep.config import PrepConfig
    from protlat.data_prep.flow import run as prep

    source = tmp_path / "in.fasta"
    source.write_text(">a one\nMKTXAYI\n>b two\n" + "ACDEFGHIKL" * 3 + "\n>c\nMWW\n")
    for name, changes in (("shards", {}), ("fixed", {"fixed_length": 20, "overlap": 5})):
        prep(PrepConfig.load(None, (), inputs=[str(source)], output=str(tmp_path / name), **changes))
    values = {"vectors__include": ["per_tok"]}
    rows = run(config(model_folder, tmp_path / "shards", tmp_path / "shards.h5", **values))
    assert rows["unknown residues"] == "1 (X 1)"
    run(config(model_folder, source, tmp_path / "fasta.h5", **values))
    with load_embeddings(tmp_path / "shards.h5") as shards, load_embeddings(tmp_path / "fasta.h5") as fasta:
        assert sorted(shards.identifiers) == ["a", "b", "c"]
        for name, array in shards:
            np.testing.assert_allclose(array, fasta[name], rtol=0, atol=1e-5)
    # Fixed length: padding is no part of a sequence, later windows are named by their residues.
    run(config(model_folder, tmp_path / "fixed", tmp_path / "fixed.h5", **values))
    with load_embeddings(tmp_path / "fixed.h5") as fixed:
        assert {name: len(array) for name, array in fixed} == {"a": 7, "b": 20, "b:16-30": 15, "c": 3}
    with pytest.raises(ShardError, match=r"no split 'other'; it has"):
        run(config(model_folder, tmp_path / "shards", tmp_path / "x.h5", split="other"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(arguments: list[str], world_size: int) -> list[subprocess.CompletedProcess[str]]:
    shared = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "protlat.pipelines.embed", f"--local_rank={rank}", *arguments[1:]],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    finished = []
    for process in processes:
        out, err = process.communicate(timeout=200)
        finished.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return finished


def test_two_processes_write_what_one_writes(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    finished = launch(command(model_folder, fasta, tmp_path / "two.h5"), 2)
    assert [process.returncode for process in finished] == [0, 0], finished[0].stderr + finished[1].stderr
    assert "sequences out" in finished[0].stderr
    assert "sequences out" not in finished[1].stderr
    run(config(model_folder, fasta, tmp_path / "one.h5", vectors__include=["mean", "per_tok"]))
    assert sha256(tmp_path / "two.h5") == sha256(tmp_path / "one.h5")


def test_an_error_of_the_first_process_ends_all(model_folder: Path, fasta: Path, tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"old")
    finished = launch(command(model_folder, fasta, tmp_path / "x.h5"), 2)
    assert [process.returncode for process in finished] == [1, 1]
    assert "exists; replace it with --overwrite" in finished[0].stderr
    assert "the first process could not start" in finished[1].stderr
