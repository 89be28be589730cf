"""Label transfer: the average it takes, the bandwidth it chooses, its table, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from protlat.cli.analyze import analyze
from protlat.errors import ConfigError, OutputError, SequenceError
from protlat.inference.label_tables import read_labels
from protlat.inference.label_transfer import LabelTransfer, task_of
from protlat.pipelines.analyze import TransferConfig, run


def groups(seed: int, n: int, dim: int = 8, apart: float = 1.5) -> tuple[np.ndarray, list[str]]:
    """Three clouds of points with a large common offset, as embeddings have."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(3, dim))
    label = rng.integers(0, 3, n)
    points = 20 + apart * centres[label] + rng.normal(size=(n, dim))
    return points.astype(np.float32), [("blue", "green", "red")[i] for i in label]


def write(path: Path, vectors: np.ndarray, prefix: str, **attributes: str) -> list[str]:
    names = [f"{prefix}{i}" for i in range(len(vectors))]
    with h5py.File(path, "w", track_order=True) as file:
        for name, vector in zip(names, vectors, strict=True):
            file.create_dataset(name, data=vector)
        file.attrs.update(attributes)
    return names


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_weights_are_the_kernel_of_the_metric(metric: Any) -> None:
    vectors, labels = groups(0, 30)
    queries, _ = groups(1, 5)
    model = LabelTransfer(vectors, labels, metric, bandwidth=0.7)
    for query, found in zip(queries.astype(float), model.transfer(queries), strict=True):
        keys = vectors.astype(float)
        if metric == "cosine":
            half = 1 - keys @ query / np.linalg.norm(keys, axis=1) / np.linalg.norm(query)
            shown = half
        else:
            half = ((keys - query) ** 2).sum(1) / 2
            shown = np.sqrt(2 * half)
        weights = np.exp(-(half - half.min()) / 0.7**2)
        weights /= weights.sum()
        share = {label: weights[np.array(labels) == label].sum() for label in set(labels)}
        assert found.label == max(share, key=share.__getitem__)
        assert found.certainty == pytest.approx(max(share.values()), rel=1e-3)
        assert found.nearest == int(shown.argmin())
        assert found.distance == pytest.approx(shown.min(), rel=2e-3)
        assert found.n_effective == pytest.approx(1 / (weights**2).sum(), rel=1e-2)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_unseen_points_get_the_label_of_their_cloud(metric: Any) -> None:
    vectors, labels = groups(0, 300)
    queries, truth = groups(1, 200)
    model = LabelTransfer(vectors, labels, metric)
    right = np.mean([found.label == label for found, label in zip(model.transfer(queries), truth, strict=True)])
    assert right > 0.9 > 2 * model.left_out["plain"]
    assert model.left_out["score"] == pytest.approx(right, abs=0.06)


def test_the_bandwidth_is_near_the_best_of_the_grid_on_unseen_points() -> None:
    vectors, labels = groups(0, 300, apart=0.6)
    queries, truth = groups(1, 300, apart=0.6)

    def loss(model: LabelTransfer) -> float:
        rows = zip(model.transfer(queries), truth, strict=True)
        return -float(np.mean([np.log(max(f.certainty if f.label == t else 1 - f.certainty, 0.01)) for f, t in rows]))

    chosen = LabelTransfer(vectors, labels, "euclidean")
    others = [LabelTransfer(vectors, labels, "euclidean", chosen.bandwidth * factor) for factor in (0.2, 5)]
    assert all(loss(chosen) < loss(other) for other in others)


def test_without_any_signal_it_says_no_better_than_the_commonest_class() -> None:
    rng = np.random.default_rng(3)
    labels = ["rare" if x < 0.2 else "common" for x in rng.random(400)]
    model = LabelTransfer(rng.normal(size=(400, 6)), labels)
    assert model.left_out["score"] <= model.left_out["plain"] + 0.02


def test_numbers_are_averaged_and_far_points_are_noted() -> None:
    vectors = np.random.default_rng(0).uniform(0, 3, size=(400, 2))
    labels = [f"{np.sin(x) + y:.4f}" for x, y in vectors]
    model = LabelTransfer(vectors, labels, "euclidean")
    assert (model.task, model.classes) == ("numbers", [])
    assert model.left_out["score"] > 0.97
    inside, outside = model.transfer(np.array([[1.0, 1.0], [30.0, 1.0]]))
    assert inside.label == pytest.approx(np.sin(1) + 1, abs=0.1)
    assert (inside.far, outside.far) == (False, True)
    assert outside.distance == pytest.approx(27, abs=0.3)


def test_what_labels_are() -> None:
    assert task_of(["0", "1"]) == "classes"
    assert task_of([str(i) for i in range(30)]) == "numbers"
    assert task_of(["0.5", "1e-3"]) == "numbers"
    assert task_of(["0.5", "low"]) == "classes"
    vectors, _ = groups(0, 4)
    with pytest.raises(ConfigError, match="label 'low' is not a number; use --task classes"):
        LabelTransfer(vectors, ["1", "2", "low", "3"], task="numbers")
    with pytest.raises(ConfigError, match="1 labelled references: at least two"):
        LabelTransfer(vectors[:1], ["a"])
    with pytest.raises(ConfigError, match="all reference embeddings are the same"):
        LabelTransfer(np.ones((5, 3)), ["a", "b", "a", "b", "a"])


def test_the_command_from_files_to_table(tmp_path: Path) -> None:
    vectors, labels = groups(0, 120)
    names = write(tmp_path / "reference.h5", vectors, "r")
    queries, truth = groups(1, 40)
    write(tmp_path / "query.h5", queries, "q")
    rows = [f"{name}\t{label}" for name, label in zip(names[:100], labels, strict=False)]
    (tmp_path / "labels.tsv").write_text("\n".join(["identifier\tplace", *rows, "absent\tred"]) + "\n")
    words = ["transfer", str(tmp_path / "query.h5"), "--reference", str(tmp_path / "reference.h5")]
    words += ["--labels", str(tmp_path / "labels.tsv"), "--label-column", "place", "--threads", "1", "-o"]
    done = CliRunner().invoke(analyze, [*words, str(tmp_path / "out.tsv")], catch_exceptions=False)
    assert done.exit_code == 0
    found = read(tmp_path / "out.tsv")
    assert [row["identifier"] for row in found] == [f"q{i}" for i in range(40)]
    assert np.mean([row["label"] == label for row, label in zip(found, truth, strict=True)]) > 0.8
    assert {row["nearest"] for row in found} <= set(names[:100])
    again = CliRunner().invoke(analyze, [*words, str(tmp_path / "out.json"), "--bandwidth", "1e-3"])
    assert again.exit_code == 0, again.exception
    assert all(
        row["label"] == row["nearest_label"] and row["note"] in ("", "far")
        for row in json.loads((tmp_path / "out.json").read_text())
    )
    with pytest.raises(OutputError, match="there already; --overwrite"):
        CliRunner().invoke(analyze, [*words, str(tmp_path / "out.tsv")], catch_exceptions=False)


def test_the_account_counts_what_was_not_used(tmp_path: Path) -> None:
    vectors, labels = groups(0, 30)
    names = write(tmp_path / "r.h5", vectors, "p")
    rows = [f"{name},{label}" for name, label in zip(names[:20], labels, strict=False)]
    (tmp_path / "l.csv").write_text("\n".join(["Accession,Label", *rows, "x,red", "p25,"]) + "\n")
    values = {"query": "r.h5", "reference": "r.h5", "labels": "l.csv", "output": "o.parquet"}
    config = TransferConfig(**{key: str(tmp_path / name) for key, name in values.items()}, threads=1)
    account = run(config)
    assert account["queries"] == 30
    assert account["queries that are references too"] == account["labelled references"] == 20
    assert account["references without a label"] == 10
    assert account["labels without a reference"] == 1


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    vectors, labels = groups(0, 10)
    meta = {name: json.dumps({"model_hash": name, "model_name": f"model {name}"}) for name in ("a", "b")}
    columns = json.dumps({"columns": [{"kind": "per_tok", "layer": 0, "label": ""}]})
    write(tmp_path / "a.h5", vectors, "p", protlat=meta["a"])
    write(tmp_path / "b.h5", vectors, "p", protlat=meta["b"])
    write(tmp_path / "narrow.h5", vectors[:, :3], "p")
    write(tmp_path / "rows.h5", vectors, "p", protlat=columns)
    text = "\n".join(f"p{i}\t{label}" for i, label in enumerate(labels))
    (tmp_path / "labels.tsv").write_text(f"id\tlabel\n{text}\n")
    (tmp_path / "other.tsv").write_text("id\tlabel\nq1\tred\n")

    def transfer(query: str, reference: str, labels: str = "labels.tsv", **more: Any) -> None:
        files = {"query": query, "reference": reference, "labels": labels, "output": "out.tsv"}
        run(TransferConfig(**{key: str(tmp_path / name) for key, name in files.items()}, threads=1, **more))

    with pytest.raises(ConfigError, match=r"different models \(model a, model b\): embed both with one"):
        transfer("a.h5", "b.h5")
    with pytest.raises(ConfigError, match=r"shape \(3,\); the references have 8"):
        transfer("narrow.h5", "a.h5")
    with pytest.raises(ConfigError, match="one vector per residue; embed with --include mean"):
        transfer("rows.h5", "a.h5")
    with pytest.raises(
        ConfigError, match=r"no identifier of .* has a label: the file's first is 'p0', the table's 'q1'"
    ):
        transfer("a.h5", "a.h5", "other.tsv")
    with pytest.raises(SequenceError, match="no such file"):
        transfer("a.h5", "absent.h5")
    with pytest.raises(ConfigError, match="a bandwidth is a positive number, or auto"):
        TransferConfig.load(bandwidth=-1.0)
    with pytest.raises(ConfigError, match="QUERY: nothing given"):
        run(TransferConfig())
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("name\tlabel\na\tx\n", ConfigError, "no column identifier, id or accession; its columns: name, label"),
        ("id\tplace\na\tx\n", ConfigError, "no column 'label'; its columns: id, place; name one with --label-column"),
        ("id\tlabel\na\tx\nb\n", SequenceError, "line 3: 1 cells, but 2 columns"),
        ("id\tlabel\na\tx\na\ty\n", SequenceError, "line 3: a has the labels 'x' and 'y'"),
        ("", ConfigError, "its columns: none"),
    ],
)
def test_label_tables_that_cannot_be_read(tmp_path: Path, text: str, kind: type[Exception], message: str) -> None:
    path = tmp_path / "labels.tsv"
    path.write_text(text)
    with pytest.raises(kind, match=message):
        read_labels(path)
