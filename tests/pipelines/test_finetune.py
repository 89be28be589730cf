"""Fine-tuning from a labelled file to a folder that predicts, in every mode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from protlat.alphabet import PROTEIN, STANDARD_RESIDUES
from protlat.cli.main import main
from protlat.errors import CheckpointError, ConfigError, OutputError, SequenceError
from protlat.inference.label_prediction import LabelPredictor
from protlat.models import Encoder, MaskedLM, ModelConfig, model_hash
from protlat.models.head_file import describe_fine_tuned, read_head
from protlat.pipelines.finetune import FinetuneConfig, finetune, run
from protlat.pipelines.predict_labels import PredictLabelsConfig
from protlat.pipelines.predict_labels import run as predict
from protlat.training.metrics import read_metrics

QUICK = ("engine.dtype=float32", "engine.device=cpu", "tokens_per_batch=256", "n_bootstrap=20")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("models") / "toy"
    MaskedLM(ModelConfig(d_model=32, n_layers=2, head_dim=16), PROTEIN).save_pretrained(folder)
    return folder


def proteins(n: int, seed: int, shortest: int = 8) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(STANDARD_RESIDUES), int(rng.integers(shortest, 30)))) for _ in range(n)]


def sequence_task(folder: Path, kind: str, n: int = 24) -> Path:
    """A table whose labels follow from what a sequence is made of."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["sequence,label,set"]
    rng = np.random.default_rng(4)
    for number, residues in enumerate(proteins(n, seed=1)):
        is_high = number % 2
        # Half of the residues tell the class.
        mixed = "".join(
            ("KR" if is_high else "DE")[number % 2] if rng.random() < 0.5 else letter for letter in residues
        )
        label = {"class": ("acid", "base")[is_high], "value": f"{3.0 + mixed.count('K') / len(mixed):.4f}"}
        split = ("train", "train", "train", "train", "valid", "test")[number // 2 % 6]
        label["multilabel"] = ";".join([label["class"], *(["many"] if number % 3 == 0 else [])])
        lines.append(f"{mixed},{label[kind]},{split}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    text = f"name: toy\ntype: sequence_{kind}\noverlap: warn\nsources:\n  - {{kind: table, path: table.csv}}\n"
    (folder / "task.yaml").write_text(text)
    return folder / "task.yaml"


def residue_task(folder: Path, before: bool = True, n: int = 24) -> Path:
    """A three-line FASTA: each residue's label is told by the residue before it, or by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for number, residues in enumerate(proteins(n, seed=2)):
        telling = "W" + residues[:-1] if before else residues
        labels = "".join("H" if letter in "ACDEFGHIKL" else "E" for letter in telling)
        labels = "?" + labels[1:]
        lines[("train", "train", "train", "train", "valid", "test")[number % 6]] += [f">p{number}", residues, labels]
    sources = ""
    for split, found in lines.items():
        (folder / f"{split}.txt").write_text("\n".join(found) + "\n")
        sources += f"  - {{kind: three_line, path: {split}.txt, split: {split}}}\n"
    (folder / "task.yaml").write_text(f"name: toy\ntype: residue_class\nsources:\n{sources}")
    return folder / "task.yaml"


def config(task: Path, model: Path, output: Path, *overrides: str, **values: Any) -> FinetuneConfig:
    cache = str(task.parent / "cache")
    given = {"task": str(task), "model": str(model), "output": str(output), "cache": cache, **values}
    return FinetuneConfig.load(None, (*QUICK, *overrides), **given)


def fasta(path: Path, sequences: Sequence[str]) -> Path:
    path.write_text("".join(f">q{i}\n{residues}\n" for i, residues in enumerate(sequences)))
    return path


def table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


CASES = [
    ("class", "head", "linear"), ("class", "head", "mlp"), ("class", "head", "attention"), ("class", "head", "cnn"),
    ("value", "head", "mlp"), ("multilabel", "head", "mlp"), ("class", "lora", "linear"), ("class", "full", "attention"),
    ("value", "full", "linear"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "mode", "head"), CASES)
def test_every_kind_fits_a_tiny_set_of_sequences(kind: str, mode: str, head: str, model: Path, tmp_path: Path) -> None:
    task = sequence_task(tmp_path / "task", kind)
    more = ["limits.max_steps=60", "limits.evaluate_every=20", f"head.kind={head}", "head.dropout=0", "optim.lr=1e-2"]
    run(config(task, model, tmp_path / "out", *more, mode=mode))
    report = read_head(tmp_path / "out")[1].report
    losses = [row["loss"] for row in read_metrics(tmp_path / "out/metrics.jsonl") if row["kind"] == "train"]
    assert np.mean(losses[-5:]) < 0.35 * losses[0]
    [(name, scored)] = list(report["scores"]["test"].items())[:1]
    assert name == {"class": "accuracy", "value": "spearman", "multilabel": "fmax"}[kind]
    assert scored["low"] <= scored["value"] <= scored["high"]
    assert "test" in report["baseline"]["scores"]
    assert not (tmp_path / "out/checkpoints").exists()


@pytest.mark.parametrize("head", ["linear", "mlp", "cnn"])
def test_every_kind_fits_a_tiny_set_of_residues(head: str, model: Path, tmp_path: Path) -> None:
    task = residue_task(tmp_path / "task", before=head == "cnn")
    more = ["limits.max_steps=80", f"head.kind={head}", "head.dropout=0", "optim.lr=1e-2", "layer=0"]
    run(config(task, model, tmp_path / "out", *more))
    # A convolution sees what stands beside; from some 280 residues not every letter's class is learned.
    assert read_head(tmp_path / "out")[1].report["scores"]["test"]["accuracy"]["value"] > 0.8


def test_frozen_and_joint_modes_move_what_they_should(model: Path, tmp_path: Path) -> None:
    task = sequence_task(tmp_path / "task", "class")
    base = load_file(model / "model.safetensors")
    for mode in ("probe", "head", "lora", "full"):
        run(config(task, model, tmp_path / mode, "limits.max_steps=8", mode=mode))
    for mode in ("probe", "head"):
        assert model_hash(tmp_path / mode) == model_hash(model)
    for mode in ("lora", "full"):
        Encoder.from_pretrained(tmp_path / mode)
        now = load_file(tmp_path / mode / "model.safetensors")
        moved = {name for name in now if not torch.equal(now[name], base[f"encoder.{name}"])}
        adapted = {name for name in now if name.endswith(("project.weight", "mix.weight", "up.weight", "down.weight"))}
        assert moved == (adapted if mode == "lora" else set(now))


@pytest.mark.parametrize("mode", ["probe", "head", "lora"])
@pytest.mark.parametrize("kind", ["sequence", "residue"])
def test_predictions_are_those_of_the_report_and_do_not_depend_on_company(
    mode: str, kind: str, model: Path, tmp_path: Path
) -> None:
    task = sequence_task(tmp_path / "task", "class") if kind == "sequence" else residue_task(tmp_path / "task")
    run(config(task, model, tmp_path / "out", "limits.max_steps=10", mode=mode))
    inputs = fasta(tmp_path / "in.fasta", [*proteins(9, seed=6, shortest=1), "MKV" * 700])

    def rows(name: str, **settings: Any) -> list[list[str]]:
        outputs = str(tmp_path / f"{name}.tsv")
        predict(PredictLabelsConfig(inputs=(str(inputs),), model=str(tmp_path / "out"), output=outputs, dtype="float32", per_class=True, **settings))  # fmt: skip
        return table(tmp_path / (f"{name}.tsv" if kind == "sequence" else f"{name}.residues.tsv"))

    together, alone = rows("together"), rows("alone", toks_per_batch=1)
    assert together[0] == alone[0]
    n_words = 4 if kind == "sequence" else 5
    probabilities = np.array([row[n_words:] for row in together[1:]], dtype=float)
    np.testing.assert_allclose(probabilities, np.array([r[n_words:] for r in alone[1:]], dtype=float), atol=2e-4)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-4)
    sequences = [line for line in inputs.read_text().splitlines() if not line.startswith(">")]
    assert len(together) - 1 == (len(sequences) if kind == "sequence" else sum(len(s) for s in sequences))
    if kind == "residue":
        lines = table(tmp_path / "together.tsv")
        assert [row[0] for row in lines[1:]] == [f"q{i}" for i in range(10)]
        assert [len(row[2]) for row in lines[1:]] == [len(s) for s in sequences]
        assert "".join(row[2] for row in lines[1:]) == "".join(row[3] for row in together[1:])


def test_predict_gives_the_scores_that_the_report_states(model: Path, tmp_path: Path) -> None:
    task = sequence_task(tmp_path / "task", "value", n=36)
    run(config(task, model, tmp_path / "out", "limits.max_steps=30", mode="full"))
    _, head = read_head(tmp_path / "out")
    from protlat.evaluation.scores import score
    from protlat.tasks.load import load_task

    split = load_task(task).data.splits["test"]
    predictor = LabelPredictor.load(tmp_path / "out", torch.device("cpu"), torch.float32, 8192)
    found = dict(predictor.run(split.ids, split.names))
    values = np.array([found[i][0] for i in range(len(split))])
    assert score("spearman", split.labels, values, n_bootstrap=0).value == pytest.approx(head.report["scores"]["test"]["spearman"]["value"])  # type: ignore[arg-type]  # fmt: skip
    assert 2.5 < values.mean() < 4.5


KILLED = """
import os, signal, sys
import torch
from protlat.pipelines.finetune import FinetuneConfig, run
from protlat.training import label_loss

torch.set_num_threads(1)
real, calls = label_loss.F.cross_entropy, 0

def cross_entropy(*args, **kwargs):
    global calls
    calls += torch.is_grad_enabled()
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)

label_loss.F.cross_entropy = cross_entropy
run(FinetuneConfig.load(sys.argv[1]))
"""


@pytest.mark.parametrize(("mode", "dtype"), [("head", "float32"), ("lora", "bfloat16"), ("full", "float32")])
def test_killed_and_resumed_ends_as_one_that_was_not(mode: str, dtype: str, model: Path, tmp_path: Path) -> None:
    task = residue_task(tmp_path / "task")
    more = [
        f"engine.dtype={dtype}", "limits.max_steps=12", "limits.evaluate_every=4", "checkpoints.every_steps=3",
        "tokens_per_batch=64", "engine.accumulate=2", "head.kind=cnn", "head.width=8",
    ]  # fmt: skip
    run(config(task, model, tmp_path / "whole", *more, mode=mode))
    killed = config(task, model, tmp_path / "killed", *more, mode=mode)
    path = tmp_path / "config.yaml"
    path.write_text(killed.to_yaml())
    # Two batches a step: call 22 is in the middle of step 11, after the checkpoint of step 9 or an evaluation's of 8.
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), "22"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed/head.json").exists()
    assert describe_run_state(tmp_path / "killed") == "running, or killed before it could say so"
    run(killed.model_copy(update={"resume": True}))
    for name in ("model.safetensors", "head.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    assert record(tmp_path / "whole") == record(tmp_path / "killed")


def describe_run_state(folder: Path) -> str:
    from protlat.training.describe import describe_run

    return str(describe_run(folder)["state"])


def record(folder: Path) -> list[dict[str, Any]]:
    clocked = {"tokens_per_s", "wait_s", "memory_bytes", "wall_s"}
    return [{k: v for k, v in row.items() if k not in clocked} for row in read_metrics(folder / "metrics.jsonl")]


def test_a_signal_saves_and_resume_goes_on(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from protlat.training import label_loop

    task = sequence_task(tmp_path / "task", "class")
    settings = config(task, model, tmp_path / "out", "limits.max_steps=12", "checkpoints.every_minutes=null")
    real = label_loop.LabelLoop._between_steps

    def between(self: label_loop.LabelLoop) -> None:
        real(self)
        if self.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(label_loop.LabelLoop, "_between_steps", between)
    result = finetune(settings)
    assert result.stopped_by == signal.SIGTERM
    assert "resume with --resume" in result.summary["state"]
    monkeypatch.setattr(label_loop.LabelLoop, "_between_steps", real)
    result = finetune(settings.model_copy(update={"resume": True}))
    assert result.stopped_by is None
    assert [row["step"] for row in record(tmp_path / "out") if row["kind"] == "train"] == list(range(1, 13))
    # Complete: another resume changes nothing.
    before = (tmp_path / "out/head.json").read_bytes()
    assert run(settings.model_copy(update={"resume": True}))["task"] == "toy (sequence_class)"
    assert (tmp_path / "out/head.json").read_bytes() == before


def test_stops_when_nothing_gets_better_and_keeps_the_best(model: Path, tmp_path: Path) -> None:
    task = sequence_task(tmp_path / "task", "class")
    more = ["limits.max_steps=400", "limits.evaluate_every=5", "limits.patience=3", "optim.lr=5e-2"]
    run(config(task, model, tmp_path / "out", *more))
    course = read_head(tmp_path / "out")[1].report["training"]
    assert course["ended"] == "no better score"
    assert course["steps"] == course["best step"] + 15


def test_without_validation_all_steps_are_done(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = sequence_task(tmp_path / "task", "class")
    task.write_text(task.read_text() + "valid: null\n")
    text = (tmp_path / "task/table.csv").read_text().replace(",valid", ",train")
    (tmp_path / "task/table.csv").write_text(text)
    run(config(task, model, tmp_path / "out", "limits.max_steps=7"))
    head = read_head(tmp_path / "out")[1]
    assert head.report["training"]["best step"] == 7
    assert head.temperature == 1.0
    assert "no validation split" in caplog.text


def test_missing_and_rare_labels(model: Path, tmp_path: Path) -> None:
    """A protein without labels is neither trained on nor scored; weights make a rare class count."""
    task = residue_task(tmp_path / "task")
    path = tmp_path / "task/train.txt"
    path.write_text(path.read_text() + ">none\nACDEF\n?????\n")
    run(config(task, model, tmp_path / "out", "limits.max_steps=5", class_weights="balanced"))
    report = read_head(tmp_path / "out")[1].report
    assert report["data"]["train"]["sequences"] == 17
    assert report["data"]["train"]["labels"] == report["data"]["train"]["residues"] - 16 - 5


def test_the_result_is_a_model_for_every_command(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = residue_task(tmp_path / "task")
    out, inputs = tmp_path / "out", fasta(tmp_path / "in.fasta", ["MKVLA", "ACDEFGHIKL"])

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    settings = [word for item in (*QUICK, "limits.max_steps=4") for word in ("--set", item)]
    code, _, err = call(
        "finetune", str(task), "-m", str(model), "-o", str(out), "--cache", str(tmp_path / "c"), *settings
    )
    assert code == 0
    assert "majority class" in err
    code, said, _ = call("info", str(out))
    assert code == 0
    assert "fine-tuned model" in said
    assert json.loads(call("info", str(out), "--json")[1])["classes"] == "2: E, H"
    assert call("embed", str(inputs), "-m", str(out), "-o", str(tmp_path / "e.npz"))[0] == 0
    assert call("predict", "-m", str(out), str(inputs), "-o", str(tmp_path / "p.tsv"))[0] == 0
    assert len(table(tmp_path / "p.residues.tsv")) == 16
    code, said, _ = call("predict", "labels", "-m", str(out), str(inputs), "-o", "-")
    assert len(said.splitlines()) == 3
    code, _, err = call("predict", "-m", str(out), str(inputs), "-o", str(tmp_path / "p.tsv"))
    assert (code, "exists; replace it with --overwrite" in err) == (1, True)
    code, _, err = call("predict", "-m", str(model), str(inputs), "-o", str(tmp_path / "q.tsv"))
    assert code == 1
    assert err.startswith(f"error: {model}: a model without a head (head.json); make one with: protlat finetune")
    assert err.count("\n") == 1
    assert (out / "curve.png").is_file()
    assert "majority class" in (out / "README.md").read_text()
    assert describe_fine_tuned(out)["trained"] == "head"


def test_faults_are_told_before_anything_is_touched(model: Path, tmp_path: Path) -> None:
    task = sequence_task(tmp_path / "task", "class")
    out = tmp_path / "out"
    run(config(task, model, out, mode="probe"))
    before = (out / "head.json").read_bytes()
    single = tmp_path / "single.csv"
    single.write_text("sequence,label,set\nMKVLA,a,train\nACDEF,a,train\nGGGGG,a,test\n")
    with pytest.raises(SequenceError):
        run(config(single, model, out, overwrite=True))
    faults: list[tuple[type[Exception], str, dict[str, Any], list[str]]] = [
        (OutputError, "already holds a run", {}, []),
        (CheckpointError, "no model here", {"model": str(tmp_path), "overwrite": True}, []),
        (ConfigError, "holds the model that is to be fine-tuned", {"model": str(out), "overwrite": True}, []),
        (ConfigError, "layer 9: this model has layers 0", {"overwrite": True}, ["layer=9"]),
        (ConfigError, "a ridge probe predicts values", {"overwrite": True, "mode": "probe"}, ["probe.kind=ridge"]),
        (ConfigError, "mode probe takes probe.kind", {"mode": "probe"}, ["head.kind=cnn"]),
        (ConfigError, "no linear layer is called 'x'", {"mode": "lora", "output": str(tmp_path / "new")}, ["lora.targets=[x]"]),
        (ConfigError, "is unknown", {"task": "no_such_task"}, []),
    ]  # fmt: skip
    for kind, message, values, overrides in faults:
        given = {"task": str(task), "model": str(model), "output": str(out), "cache": str(tmp_path / "c"), **values}
        with pytest.raises(kind, match=message):
            run(FinetuneConfig.load(None, (*QUICK, *overrides), **given))
    residue = residue_task(tmp_path / "residue")
    with pytest.raises(ConfigError, match="for labels of residues use cnn"):
        run(config(residue, model, tmp_path / "new2", "head.kind=attention"))
    assert (out / "head.json").read_bytes() == before


def test_a_resumed_run_cannot_become_another(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from protlat.training import label_loop

    task = sequence_task(tmp_path / "task", "class")
    settings = config(task, model, tmp_path / "out", "limits.max_steps=6", "limits.evaluate_every=2")

    def fail(self: label_loop.LabelLoop) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(label_loop.LabelLoop, "_between_steps", fail)
        with pytest.raises(KeyboardInterrupt):
            run(settings)
    resumed = settings.model_copy(update={"resume": True})
    with pytest.raises(ConfigError, match=r"seed differs from the run's config\.yaml"):
        run(resumed.model_copy(update={"seed": 5}))
    path = tmp_path / "task/table.csv"
    path.write_text(path.read_text().replace("acid", "sour"))
    with pytest.raises(ConfigError, match="the data of task toy is not what the run was started on"):
        run(resumed)
    with pytest.raises(CheckpointError, match="there is no run here to resume"):
        run(config(task, model, tmp_path / "absent", resume=True))
