"""`protlat evaluate` end to end on planted tasks."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protlat.alphabet import BYTES, PROTEIN, STANDARD_RESIDUES
from protlat.errors import CheckpointError, ConfigError, OutputError, SequenceError, ShardError, TrainingError
from protlat.models import CausalLM, MaskedLM, ModelConfig
from protlat.pipelines import evaluate as module
from protlat.pipelines.evaluate import EvaluateConfig, run
from protlat.pipelines.evaluate_data import sample_rows
from protlat.tasks.data import LabelledSplit
from tests.pipelines.conftest import patterned_records, write_shards

WILD = "MKTAYIAKQRQISFVKSHFSRQ"
CHEAP = ("majority", "composition", "kmer", "probe")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("models") / "toy"
    MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks: a class that follows from lysines, a label of every residue, a value of variants."""
    folder = tmp_path_factory.mktemp("tasks")
    rng = np.random.default_rng(0)
    letters = list(STANDARD_RESIDUES)
    rows = ["sequence,label,set"]
    for index in range(90):
        label = index % 2
        weights = np.ones(20)
        weights[letters.index("K")] = 6 if label else 1
        sequence = "".join(rng.choice(letters, 30, p=weights / weights.sum()))
        rows.append(f"{sequence},{'rich' if label else 'poor'},{'train' if index < 50 else 'test'}")
    (folder / "lysine.csv").write_text("\n".join(rows) + "\n")
    (folder / "lysine.yaml").write_text(
        "name: lysine\ntitle: Rich in <lysine> & co\ntype: sequence_class\nclasses: [poor, rich]\n"
        "sources: [{kind: table, path: lysine.csv}]\nmetric: accuracy\nmetrics: [roc_auc, mcc]\n"
        "published:\n  - {who: A chemist, value: 0.9, metric: accuracy, split: test, source: a book, comparable: true}\n"
        "  - {who: Others, value: 0.7, metric: recall_at_k, split: test, source: a paper}\n"
    )
    rows = ["sequence,label,set"]
    for index in range(30):
        sequence = "".join(rng.choice(letters, 25))
        labels = "".join("H" if letter in "AELMK" else "C" for letter in sequence)
        rows.append(f"{sequence},{labels},{'train' if index < 20 else 'test'}")
    (folder / "helix.csv").write_text("\n".join(rows) + "\n")
    (folder / "helix.yaml").write_text(
        "name: helix\ntype: residue_class\nclasses: [H, C]\nsources: [{kind: table, path: helix.csv}]\nmetric: accuracy\n"
    )
    rows = ["mutant,fitness"]
    for position, old in enumerate(WILD):
        rows += [f"{old}{position + 5}{new},{rng.normal():.3f}" for new in "AGW" if new != old]
    (folder / "scan.csv").write_text("\n".join(rows) + "\n")
    (folder / "scan.yaml").write_text(
        f"name: scan\ntype: sequence_value\nsources: [{{kind: variants, path: scan.csv, label: fitness, split: test}}]\n"
        f"wild_type: {WILD}\noffset: 5\nmetric: spearman\nzero_shot: true\n"
    )
    return folder


def config(model: Path, folder: Path, output: Path, /, *names: str, **changes: Any) -> EvaluateConfig:
    values: dict[str, Any] = {
        "model": str(model), "output": str(output), "tasks": [str(folder / f"{name}.yaml") for name in names], "rows": CHEAP,
        "device": "cpu", "dtype": "float32", "n_bootstrap": 100, "head_residues": 5000, "scratch_residues": 5000,
        "full_residues": 5000,
    }  # fmt: skip
    return EvaluateConfig.load(None, (), **{**values, **changes})


def scores_of(output: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with open(output / "scores.tsv", newline="") as handle:
        return {(r["task"], r["row"], r["metric"]): r for r in csv.DictReader(handle, delimiter="\t")}


class _Outside(HTMLParser):
    """Collects whatever a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "srcset", "action") and not (value or "").startswith("#"):
                self.found.append(f"{tag} {name}={value}")
        if tag in ("link", "script", "iframe", "object", "img", "base"):
            self.found.append(tag)


@pytest.mark.slow
def test_rows_that_train_networks(model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    trained = ("onehot_cnn", "random_probe", "scratch", "head", "lora", "full")
    summary = run(config(model_folder, tasks, tmp_path / "out", "lysine", rows=(*trained, "zero_shot")))
    found = scores_of(tmp_path / "out")
    assert {row for _, row, _ in found} == set(trained)
    assert summary["rows computed"] == 6
    assert float(found["lysine", "onehot_cnn", "accuracy"]["value"]) > 0.7
    assert not (tmp_path / "out" / "vectors").exists()
    assert not (tmp_path / "out" / ".work").exists()


def test_rows_fit_the_kind_of_task(model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    rows = (
        "composition",
        "onehot_cnn",
        "probe",
        "blosum62",
        "hydrophobicity",
        "zero_shot",
        "separation",
        "onehot_pairs",
    )
    run(config(model_folder, tasks, tmp_path / "out", "helix", "scan", rows=rows, n_bootstrap=50))
    found = scores_of(tmp_path / "out")
    assert {row for task, row, _ in found if task == "helix"} == {"composition", "onehot_cnn", "probe"}
    # No training split: only what needs none.
    assert {row for task, row, _ in found if task == "scan"} == {"blosum62", "hydrophobicity", "zero_shot"}
    # Labels follow from the residue itself.
    assert float(found["helix", "onehot_cnn", "accuracy"]["value"]) > 0.9
    assert float(found["helix", "composition", "accuracy"]["value"]) > 0.95
    assert float(found["helix", "probe", "accuracy"]["low"]) > 0.5


@pytest.mark.slow
def test_rows_of_a_contact_task(model_folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split, n_chains in (("train", 6), ("valid", 2), ("test", 4)):
        lines = []
        for index in range(n_chains):
            sequence = "".join(rng.choice(list(STANDARD_RESIDUES), 40))
            # A hairpin: residues i and 39 - i lie side by side, 5 angstrom apart.
            turn = np.array([[3.8 * min(i, 39 - i), 5.0 * (i >= 20), 0.0] for i in range(40)]).round(2).tolist()
            facts = {"id": f"{split}{index}", "seq": sequence, "ca": turn, "cb": turn, "resnum": [], "breaks": []}
            lines.append(json.dumps(facts))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    sources = ", ".join(f"{{kind: structures, path: {s}.jsonl, split: {s}}}" for s in ("train", "valid", "test"))
    (tmp_path / "hairpin.yaml").write_text(
        f"name: hairpin\ntype: pair\nsources: [{sources}]\nmetric: precision_medium_long_l5\n"
    )
    pair = {"head": {"d_hidden": 16, "rank": 8, "channels": 8, "head_dim": 4, "dilations": [1]}, "crop": 32, "crops": 2}
    rows = ("separation", "onehot_pairs", "random_pairs", "head", "pairs_convolution", "probe", "majority")
    run(config(model_folder, tmp_path, tmp_path / "out", "hairpin", rows=rows, pair=pair, pair_steps=40))
    found = scores_of(tmp_path / "out")
    metric = "precision_medium_long_l5"
    assert {row for _, row, _ in found} == {"separation", "onehot_pairs", "random_pairs", "head", "pairs_convolution"}
    assert all(0 <= float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in found.values())
    # The separation alone does not tell which pairs lie side by side.
    assert float(found["hairpin", "separation", metric]["value"]) < 0.5
    page = (tmp_path / "out" / "report.html").read_text()
    assert "model - separation" in page


def test_the_page_and_the_files_agree(model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    run(config(model_folder, tasks, tmp_path / "out", "lysine", "scan", rows=(*CHEAP, "blosum62", "zero_shot")))
    saved = json.loads((tmp_path / "out" / "scores.json").read_text())
    table = scores_of(tmp_path / "out")
    probe = saved["tasks"]["lysine"]["rows"]["probe"]["scores"]["test"]["accuracy"]
    assert float(table["lysine", "probe", "accuracy"]["value"]) == pytest.approx(probe["value"], rel=1e-5)
    assert probe["low"] <= probe["value"] <= probe["high"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{probe['value']:.3f}" in page
    # Text of others never becomes markup.
    assert "Rich in &lt;lysine&gt; &amp; co" in page
    assert "<lysine>" not in page
    for text in ("A chemist", "recall_at_k", "BLOSUM62", "Where the time goes", "labels by class", "svg"):
        assert text in page
    parser = _Outside()
    parser.feed(page)
    assert parser.found == []
    assert not re.search(r"https?:|url\((?!#)|@import", page)


def test_a_value_task_has_a_mean_and_undefined_scores_are_marked(
    model_folder: Path, tasks: Path, tmp_path: Path
) -> None:
    lines = (tasks / "scan.csv").read_text().splitlines()[1:]
    rows = ["sequence,label,set"]
    for index, line in enumerate(lines):
        name, value = line.split(",")
        place = int(name[1:-1]) - 5
        rows.append(f"{WILD[:place]}{name[-1]}{WILD[place + 1 :]},{value},{'train' if index % 2 else 'test'}")
    (tmp_path / "values.csv").write_text("\n".join(rows) + "\n")
    run(
        config(
            model_folder,
            tmp_path,
            tmp_path / "out",
            tasks=[str(tmp_path / "values.csv")],
            rows=("majority", "composition"),
        )
    )
    table = scores_of(tmp_path / "out")
    assert table["values", "majority", "spearman"]["value"] == ""
    assert "n.d." in (tmp_path / "out" / "report.html").read_text()


def _stamps(output: Path) -> dict[str, int]:
    return {
        path.name: path.stat().st_mtime_ns for path in (output / "rows").rglob("*.json") if path.name != "task.json"
    }


def test_a_rerun_computes_what_is_missing_and_gives_the_same(
    model_folder: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    whole = run(config(model_folder, tasks, tmp_path / "whole", "lysine"))
    assert whole["rows computed"] == 4

    def killed(context: Any, row: str) -> Any:
        if row == "kmer":
            raise KeyboardInterrupt
        return score_row(context, row)

    score_row = module.score_row
    monkeypatch.setattr(module, "score_row", killed)
    with pytest.raises(KeyboardInterrupt):
        run(config(model_folder, tasks, output, "lysine"))
    assert set(_stamps(output)) == {"majority.json", "composition.json"}
    assert "majority" in (output / "report.html").read_text()
    before = _stamps(output)
    monkeypatch.undo()
    again = run(config(model_folder, tasks, output, "lysine"))
    assert (again["rows computed"], again["rows kept from before"]) == (2, 2)
    after = _stamps(output)
    assert {name: after[name] for name in before} == before
    first, second = scores_of(tmp_path / "whole"), scores_of(output)
    assert {key: row["value"] for key, row in first.items()} == {key: row["value"] for key, row in second.items()}


@pytest.mark.slow
def test_a_killed_process_is_gone_on_with(model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = [
        "evaluate", str(model_folder), "-o", str(output), "--tasks", str(tasks / "lysine.yaml"), "--dtype", "float32",
        "--device", "cpu", "--rows", ",".join((*CHEAP, "onehot_cnn")), "--set", "n_bootstrap=100", "--threads", "1",
    ]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "protlat", *arguments], stderr=subprocess.DEVNULL)
    row = output / "rows" / "lysine" / "composition.json"
    for _ in range(1200):
        if row.is_file() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert row.is_file()
    # The kill may fall into the writing of the next row: such a file counts for nothing, and goes.
    before = {name: stamp for name, stamp in _stamps(output).items() if not name.startswith(".tmp-")}
    (output / "rows" / "lysine" / ".tmp-1-kmer.json").write_text("{")
    assert "onehot_cnn.json" not in before
    values = {"rows": (*CHEAP, "onehot_cnn"), "head_residues": EvaluateConfig().head_residues, "threads": 1}
    summary = run(config(model_folder, tasks, output, "lysine", **values))
    assert summary["rows kept from before"] == len(before) >= 2
    assert summary["rows computed"] == 5 - len(before)
    after = _stamps(output)
    assert {name: after[name] for name in before} == before
    assert not list(output.rglob(".tmp-*"))


def test_what_a_row_depends_on_makes_it_anew(model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run(config(model_folder, tasks, output, "lysine"))
    torch.manual_seed(8)
    other = tmp_path / "other"
    MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), PROTEIN).save_pretrained(other)
    # Baselines do not depend on the model.
    assert run(config(other, tasks, output, "lysine"))["rows computed"] == 1
    assert run(config(other, tasks, output, "lysine", seed=1))["rows computed"] == 4
    assert run(config(other, tasks, output, "lysine", seed=1, head_residues=9))["rows computed"] == 0
    assert run(config(other, tasks, output, "lysine", seed=1, overwrite=True))["rows computed"] == 4
    (output / "rows" / "lysine" / "kmer.json").write_text("{")
    assert run(config(other, tasks, output, "lysine", seed=1))["rows computed"] == 1
    taken = run(config(other, tasks, tmp_path / "fresh", "lysine", seed=1, reuse=[str(output)]))
    assert (taken["rows computed"], taken["rows kept from before"]) == (0, 4)


def test_a_failed_row_spares_the_others(
    model_folder: Path, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(context: Any, row: str) -> Any:
        if row == "kmer":
            raise SequenceError("no\nluck")
        return score_row(context, row)

    score_row = module.score_row
    monkeypatch.setattr(module, "score_row", failing)
    with pytest.raises(TrainingError, match=r"1 rows failed, the first: lysine, kmer: no luck \(the others are in"):
        run(config(model_folder, tasks, tmp_path / "out", "lysine"))
    assert set(_stamps(tmp_path / "out")) == {"majority.json", "composition.json", "probe.json"}
    assert "lysine, kmer: no luck" in (tmp_path / "out" / "report.html").read_text()


def test_held_out_masked_residues_by_source(model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", {"train": patterned_records(50, 0), "valid": patterned_records(20, 1)})
    wanted = config(model_folder, tasks, tmp_path / "out", "lysine", rows=("majority",), heldout=str(shards))
    assert run(wanted)["rows computed"] == 2
    assert run(wanted)["rows kept from before"] == 2
    with open(tmp_path / "out" / "scores.tsv", newline="") as handle:
        rows = [row for row in csv.DictReader(handle, delimiter="\t") if row["task"] == "masked_language"]
    assert {row["split"] for row in rows} == {"all sources", "even", "odd"}
    assert {row["row"] for row in rows} == {"model", "trigram", "frequencies"}
    assert "Masked residues of held-out proteins" in (tmp_path / "out" / "report.html").read_text()
    only_train = write_shards(tmp_path / "half", {"train": patterned_records(5, 0)})
    with pytest.raises(ShardError, match="no split 'valid' to score on; it has train"):
        run(config(model_folder, tasks, tmp_path / "other", "lysine", heldout=str(only_train)))


def test_samples_are_the_same_whatever_the_order_of_rows() -> None:
    ids = tuple(np.full(length, 5, np.uint8) for length in (10, 20, 30, 40, 50))
    split = LabelledSplit(tuple("abcde"), ids, np.zeros(5, np.int64))
    assert sample_rows(split, None, 0) == [0, 1, 2, 3, 4]
    assert sample_rows(split, 150, 0) == [0, 1, 2, 3, 4]
    some = sample_rows(split, 90, 0)
    assert sum(len(ids[row]) for row in some) <= 90
    assert some == sorted(some) == sample_rows(split, 90, 0)
    assert len(sample_rows(split, 1, 0)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ["esm"]}, "row 'esm' is unknown; known: majority, composition"),
        ({"tasks": ["lysine.yaml", "lysine.yaml"]}, "a task stands twice"),
        ({"tasks": ["secondary"], "data": "."}, "'secondary' is unknown; did you mean 'secondary_structure'"),
        ({"tasks": ["esol"]}, "give --data FOLDER or set PROTLAT_DATA"),
        ({"tasks": []}, "give --data FOLDER"),
        ({"model": ""}, "MODEL: nothing given"),
        ({"output": ""}, r"output \(-o\): nothing given"),
    ],
)
def test_settings_that_do_not_fit(
    model_folder: Path,
    tasks: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PROTLAT_DATA", raising=False)
    with pytest.raises(ConfigError, match=message):
        run(config(model_folder, tasks, tmp_path / "out", "lysine", **changes))
    assert not (tmp_path / "out").exists()


def test_tasks_without_data_are_left_out_unless_asked_for(model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "downstream" / "esol").mkdir(parents=True)
    with pytest.raises(SequenceError, match=r"downstream/esol/\S+: no such file"):
        run(config(model_folder, tasks, tmp_path / "out", tasks=["esol"], data=str(tmp_path)))
    with pytest.raises(ConfigError, match="no task has its files there"):
        run(config(model_folder, tasks, tmp_path / "out", tasks=[], data=str(tmp_path)))
    assert not (tmp_path / "out").exists()


def test_models_and_outputs_that_cannot_be_used(model_folder: Path, tasks: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no model here"):
        run(config(tmp_path, tasks, tmp_path / "out", "lysine"))
    with pytest.raises(ConfigError, match="holds the model"):
        run(config(model_folder, tasks, model_folder, "lysine"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        run(config(model_folder, tasks, tmp_path / "file", "lysine"))
    MaskedLM(ModelConfig(d_model=16, n_layers=1, head_dim=8), BYTES).save_pretrained(tmp_path / "bytes")
    with pytest.raises(ConfigError, match="reads bytes, and the tasks are of proteins"):
        run(config(tmp_path / "bytes", tasks, tmp_path / "out", "lysine"))
    causal = ModelConfig.parse({"d_model": 16, "n_layers": 1, "head_dim": 8, "causal": True})
    CausalLM(causal, PROTEIN).save_pretrained(tmp_path / "causal")
    with pytest.raises(ConfigError, match="a causal model"):
        run(config(tmp_path / "causal", tasks, tmp_path / "out", "lysine"))


def test_indels_are_no_variants(model_folder: Path, tmp_path: Path) -> None:
    rows = ["sequence,label,set", *(f"{WILD[: 22 - i % 2]},{i},{'train' if i < 9 else 'test'}" for i in range(20))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "t.yaml").write_text(
        f"name: t\ntype: sequence_value\nsources: [{{kind: table, path: t.csv}}]\nwild_type: {WILD}\n"
        "valid: {fraction: 0.1, keep_together: identical}\n"
    )
    with pytest.raises(
        TrainingError, match=r"task t: t-\d+: a sequence of 21 residues is no variant of a wild type of 22"
    ):
        run(config(model_folder, tmp_path, tmp_path / "out", "t", rows=("blosum62",)))
