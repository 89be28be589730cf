"""Probes: they learn what is there to learn, keep without pickle, and refuse what cannot be learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from protlat.errors import CheckpointError, ConfigError, SequenceError
from protlat.evaluation.probes import Probe, ProbeConfig, fit_probe
from protlat.inference.feature_cache import Ragged
from protlat.tasks.data import LabelledSplit, TaskData, TaskType

E = 6


def task(task_type: TaskType, sizes: dict[str, int], seed: int = 0) -> tuple[TaskData, dict[str, np.ndarray | Ragged]]:
    """A task whose labels follow from the first channels of the features."""
    rng = np.random.default_rng(seed)
    splits: dict[str, LabelledSplit] = {}
    features: dict[str, np.ndarray | Ragged] = {}
    for name, n in sizes.items():
        lengths = rng.integers(3, 9, n) if task_type.startswith("residue") else np.ones(n, np.int64)
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
        x = (rng.normal(size=(offsets[-1], E)) * [3, 1, 1, 0.1, 1, 0] + 5).astype(np.float32)
        signal = (x[:, :2] - 5) / [3, 1]
        if task_type.endswith("value"):
            labels = (signal @ [2.0, -1.0] + 7 + rng.normal(size=len(x)) * 0.1).astype(np.float32)
            labels[::7] = np.nan
        elif task_type == "sequence_multilabel":
            labels = np.stack([signal[:, 0] > 0, signal[:, 1] > 0.3, np.zeros(len(x), bool)], 1)
        else:
            labels = np.digitize(signal[:, 0], [-0.5, 0.5]).astype(np.int64)
            labels[::7] = -1
        ids = tuple(np.full(length, 5, np.uint8) for length in lengths)
        names = tuple(f"{name}{i}" for i in range(n))
        if task_type.startswith("residue"):
            splits[name] = LabelledSplit(names, ids, tuple(np.split(labels, offsets[1:-1])))
            features[name] = Ragged(x.astype(np.float16), offsets)
        else:
            splits[name] = LabelledSplit(names, ids, labels)
            features[name] = x
    classes = () if task_type.endswith("value") else ("a", "b", "c")
    return TaskData("toy", task_type, classes, splits), features


def known(split: LabelledSplit) -> np.ndarray:
    return split.labels if isinstance(split.labels, np.ndarray) else np.concatenate(split.labels)  # type: ignore[arg-type]


CASES: list[tuple[TaskType, str]] = [
    ("sequence_class", "logistic"), ("sequence_class", "knn"), ("sequence_multilabel", "logistic"),
    ("sequence_multilabel", "knn"), ("sequence_value", "ridge"), ("sequence_value", "knn"), ("residue_class", "logistic"),
    ("residue_class", "knn"), ("residue_value", "ridge"),
]  # fmt: skip


@pytest.mark.parametrize(("task_type", "kind"), CASES)
@pytest.mark.parametrize("with_valid", [True, False])
def test_learns_and_keeps_without_pickle(task_type: TaskType, kind: str, with_valid: bool, tmp_path: Path) -> None:
    sizes = {"train": 400, **({"valid": 100} if with_valid else {}), "test": 150}
    data, features = task(task_type, sizes)
    probe = fit_probe(data, features, kind, seed=1, config=ProbeConfig(max_rows=1000))
    predicted, truth = probe.predict(features["test"]), known(data.splits["test"])
    if task_type.endswith("value"):
        there = np.isfinite(truth)
        assert np.corrcoef(predicted[there], truth[there])[0, 1] > 0.9
    elif task_type == "sequence_multilabel":
        assert ((predicted > 0.5) == truth).mean() > 0.9
    else:
        assert predicted.sum(1) == pytest.approx(1)
        there = truth >= 0
        # Channels of noise weigh as much as the others where neighbours are sought.
        assert (predicted.argmax(1) == truth)[there].mean() > (0.75 if kind == "knn" else 0.85)
    save_file(probe.to_tensors(), tmp_path / "probe.safetensors")
    tensors = load_file(tmp_path / "probe.safetensors")
    again = Probe.from_tensors(kind, task_type, probe.n_outputs, tensors)
    rows = features["test"].rows if isinstance(features["test"], Ragged) else features["test"]
    np.testing.assert_array_equal(again.outputs(rows), probe.outputs(rows))
    assert ("chosen on" in probe.facts) == (not with_valid)


def test_the_subsample_is_stated_and_seeded() -> None:
    data, features = task("residue_class", {"train": 400, "valid": 50})
    config = ProbeConfig(max_rows=200)
    one, same, other = (fit_probe(data, features, "logistic", seed, config) for seed in (0, 0, 1))
    assert one.facts["rows fitted on"] == 200
    assert one.facts["rows in train"] == int((known(data.splits["train"]) >= 0).sum())
    np.testing.assert_array_equal(one.tensors["weight"], same.tensors["weight"])
    assert not np.array_equal(one.tensors["weight"], other.tensors["weight"])


def test_neighbours_are_not_chosen_on_themselves() -> None:
    data, features = task("sequence_class", {"train": 300})
    noise = np.random.default_rng(0).integers(0, 3, 300)
    split = data.splits["train"]
    data = TaskData("noise", "sequence_class", ("a", "b", "c"), {"train": LabelledSplit(split.names, split.ids, noise)})
    assert fit_probe(data, features, "knn").facts["neighbours"] >= 10


def test_what_cannot_be_learned() -> None:
    data, features = task("sequence_class", {"train": 20})
    split = data.splits["train"]

    def fit(labels: np.ndarray, task_type: TaskType = "sequence_class", kind: str = "auto") -> None:
        changed = TaskData("toy", task_type, data.classes, {"train": LabelledSplit(split.names, split.ids, labels)})
        fit_probe(changed, features, kind)

    with pytest.raises(SequenceError, match=r"toy: the training set holds one class only \('b'\)"):
        fit(np.ones(20, np.int64))
    with pytest.raises(SequenceError, match="no label in the training set"):
        fit(np.full(20, -1))
    with pytest.raises(SequenceError, match=r"every label of the training set is 2\.5"):
        fit(np.full(20, 2.5, np.float32), "sequence_value")
    with pytest.raises(SequenceError, match="no sequence of the training set has a class"):
        fit(np.zeros((20, 3), bool), "sequence_multilabel")
    with pytest.raises(ConfigError, match="a ridge probe predicts values"):
        fit(np.arange(20) % 2, kind="ridge")
    with pytest.raises(ConfigError, match="a logistic probe predicts classes"):
        fit(np.arange(20, dtype=np.float32), "sequence_value", "logistic")


def test_a_damaged_file_is_named() -> None:
    data, features = task("sequence_class", {"train": 50})
    tensors = fit_probe(data, features).to_tensors()
    with pytest.raises(CheckpointError, match="bias missing; a logistic probe needs it"):
        Probe.from_tensors("logistic", "sequence_class", 3, {k: v for k, v in tensors.items() if k != "bias"})
    with pytest.raises(CheckpointError, match=r"shape \(3, 6\), but head.json says \(4, 6\)"):
        Probe.from_tensors("logistic", "sequence_class", 4, tensors)
