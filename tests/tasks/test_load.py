"""Tasks by name, by YAML and by file; the tasks that come with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from protlat.errors import ConfigError, SequenceError
from protlat.evaluation.scores import metric
from protlat.tasks.describe import described
from protlat.tasks.load import find_task, load_task
from protlat.tasks.names import task_names
from tests.tasks.tools import FILES, protein

STRUCTURE = {
    "name": "structure",
    "type": "residue_class",
    "classes": ["H", "E", "C"],
    "sources": [
        {"kind": "fasta", "path": "structure.fasta", "labels": "structure_labels.fasta", "mask": "structure_mask.fasta"}
    ],
}


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    path = tmp_path / "structure.yaml"
    path.write_text(yaml.safe_dump(STRUCTURE))
    return path


@pytest.mark.parametrize("name", task_names())
def test_shipped_tasks(name: str) -> None:
    config, folder = find_task(name, "/data")
    assert folder == Path("/data")
    assert config.name == name
    assert config.title
    assert config.source
    if config.type != "pair":
        kinds = {"sequence_multilabel": "multilabel", "sequence_value": "value", "residue_value": "value"}
        for wanted in (config.metric, *config.metrics, *(entry.metric for entry in config.published)):
            assert kinds.get(config.type, "class") in metric(wanted).kinds
    for entry in config.published:
        assert -1 <= entry.value <= 1
        assert entry.comparable or entry.note


def test_the_folder_of_the_data(yaml_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROTLAT_DATA", raising=False)
    with pytest.raises(SequenceError, match=r"structure\.fasta: no such file; --data names the folder"):
        load_task(yaml_file)
    assert len(load_task(yaml_file, FILES).data.splits["train"]) == 6
    monkeypatch.setenv("PROTLAT_DATA", str(FILES))
    assert len(load_task(yaml_file).data.splits["train"]) == 6
    monkeypatch.delenv("PROTLAT_DATA")
    with pytest.raises(ConfigError, match="task 'esol': where are its files\\? give --data FOLDER or set PROTLAT_DATA"):
        load_task("esol")


def test_unknown_tasks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task 'secondary-structure' is unknown; did you mean 'secondary_structure'"):
        load_task("secondary-structure", tmp_path)
    with pytest.raises(SequenceError, match=r"gone\.csv: no such file"):
        load_task(tmp_path / "gone.csv")


def test_overrides(yaml_file: Path) -> None:
    loaded = load_task(yaml_file, FILES, ["sources.0.mask=''", "sources.0.rename_splits.test=new364"])
    assert list(loaded.data.splits) == ["train", "valid", "new364"]
    assert loaded.account.n_masked == 0
    assert loaded.data.tests == ("new364",)
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        load_task(yaml_file, FILES, ["mask"])


def test_metrics_by_type(yaml_file: Path) -> None:
    assert find_task(yaml_file)[0].metric == "accuracy"
    assert find_task(yaml_file, overrides=["metric=mcc"])[0].metric == "mcc"


def test_published_scores_of_one_source(tmp_path: Path) -> None:
    shared = {"metric": "accuracy", "split": "test", "source": "paper", "comparable": True}
    single = {"who": "C", "value": 0.5, **shared}
    (tmp_path / "a.yaml").write_text(
        yaml.safe_dump({**STRUCTURE, "published": [{"values": {"A": 0.7, "B": 0.8}, **shared}, single]})
    )
    config, _ = find_task(tmp_path / "a.yaml")
    assert [(entry.who, entry.value, entry.comparable) for entry in config.published] == [("A", 0.7, True), ("B", 0.8, True), ("C", 0.5, True)]  # fmt: skip


def rows(seed: int, n: int = 30, length: int = 40) -> list[str]:
    rng = np.random.default_rng(seed)
    return [protein(rng, length) for _ in range(n)]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (lambda row, text: str(row % 2), "sequence_class"),
        (lambda row, text: ("nucleus", "membrane")[row % 2], "sequence_class"),
        (lambda row, text: str(row), "sequence_value"),
        (lambda row, text: str(row / 7), "sequence_value"),
        (lambda row, text: f"{row % 3};{row % 2 + 5}", "sequence_multilabel"),
        (lambda row, text: ("HEC" * 20)[: len(text)], "residue_class"),
        (lambda row, text: ("01" * 20)[: len(text)], "residue_class"),
        (lambda row, text: ";".join(str(place / 7) for place in range(len(text))), "residue_value"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "fasta"])
def test_labelled_files_need_no_yaml(tmp_path: Path, labels: object, wanted: str, kind: str) -> None:
    sequences = rows(0)
    pairs = [(text, labels(row, text)) for row, text in enumerate(sequences)]  # type: ignore[operator]  # a function
    path = tmp_path / f"my proteins.{kind}"
    if kind == "csv":
        path.write_text("sequence,label\n" + "".join(f"{text},{label}\n" for text, label in pairs))
    else:
        path.write_text("".join(f">p{row} TARGET={label}\n{text}\n" for row, (text, label) in enumerate(pairs)))
    loaded = load_task(path)
    assert loaded.data.type == wanted
    assert loaded.data.name == "my_proteins"
    assert {name: len(split) for name, split in loaded.data.splits.items()} == {"train": 22, "valid": 2, "test": 6}


def test_labels_that_are_no_kind_of_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "sequence,label\n" + "".join(f"{text},word{row}\n" for row, text in enumerate(rows(0)))
    )
    with pytest.raises(
        SequenceError, match="30 different labels for 30 sequences, such as 'word0': neither classes nor numbers"
    ):
        load_task(tmp_path / "a.csv")
    (tmp_path / "a.fasta").write_text(">a\nACDEF\n")
    with pytest.raises(SequenceError, match="no record has TARGET= in its header"):
        load_task(tmp_path / "a.fasta")


@pytest.mark.parametrize("n_classes", [3, 40])
def test_description(tmp_path: Path, n_classes: int) -> None:
    text = "".join(f">p{row} TARGET=c{row % n_classes}\n{text}\n" for row, text in enumerate(rows(0, 120)))
    (tmp_path / "a.fasta").write_text(text)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"name": "a", "type": "sequence_class", "sources": [{"kind": "fasta", "path": "a.fasta"}], "test": {"fraction": 0.25}}))  # fmt: skip
    values = described(load_task(tmp_path / "a.yaml"))
    assert values["splits"]["test"]["proteins"] == 30
    assert values["splits"]["test"]["residues"] == 1200
    counted = {name: sum(row[name] for row in values["labels"].values()) for name in values["splits"]}
    assert counted == {name: facts["proteins"] for name, facts in values["splits"].items()}
    assert len(values["labels"]) == min(n_classes, 31)
    assert values["account"]["records read"] == 120
