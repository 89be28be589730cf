"""What is wrong in labels, and what is only odd."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protlat.errors import ConfigError, SequenceError
from protlat.tasks.checks import check_neighbours
from protlat.tasks.data import MISSING
from tests.tasks.tools import letters_of, mutant, one_file, protein

HEAD = "seq,label,set\n"


@pytest.mark.parametrize(
    ("text", "settings", "fault"),
    [
        ("", {}, "no labelled examples in data"),
        ("ACDEF,a,test\n", {}, "no training examples; splits found: test"),
        ("ACDEF,a,train\nCDEFG,a,train\nACDEF,b,test\n", {}, "all 2 training labels are 'a': one class only, nothing to learn"),
        ("ACDEF,2,train\nCDEFG,2,train\n", {"type": "sequence_value"}, "all 2 training labels are 2.0: one value only"),
        ("ACDEF,UUUUU,train\n", {"type": "residue_class", "label_map": {"U": None}}, "split 'train' has 1 examples, but no label"),
        ("ACDEF,a,train\nCDEFG,b,train\nDEFGH,c,test\n", {"unseen": "error"}, r"data:4: data-3: test has the class 'c', which train never shows \(1 such classes\)"),
        ("ACDEF,a,train\nCDEFG,z,train\n", {"classes": ["a", "b"]}, r"data:3: data-2: unknown label 'z'; known: 'a', 'b' \(label_map gives"),
        ("ACDEF,HHXHH,train\n", {"type": "residue_class", "classes": ["H", "E"]}, r"data:2: data-1: residue 3: unknown label 'X'"),
    ],
)  # fmt: skip
def test_errors(tmp_path: Path, text: str, settings: dict[str, object], fault: str) -> None:
    with pytest.raises(SequenceError, match=fault) as raised:
        one_file(tmp_path, HEAD + text, "table", **settings)  # type: ignore[arg-type]  # passed through
    assert "\n" not in str(raised.value)


def test_classes_that_train_never_shows(tmp_path: Path) -> None:
    text = HEAD + "ACDEF,b,train\nCDEFG,a,train\nDEFGH,c,test\nEFGHI,a,test\n"
    kept = one_file(tmp_path, text, "table")
    assert kept.data.classes == ("a", "b", "c")
    assert "test: 1 classes with 1 of 2 labels are not in train and cannot be predicted: 'c'" in kept.data.warnings
    left = one_file(tmp_path, text, "table", unseen="skip")
    assert left.data.classes == ("a", "b")
    assert len(left.data.splits["test"]) == 1
    assert "test: 1 examples of 1 classes that train never shows left out" in left.data.warnings
    listed = one_file(tmp_path, text, "table", classes=["c", "b", "a"])
    assert listed.data.classes == ("c", "b", "a")
    assert "train shows no example of 'c'" in listed.data.warnings
    residues = one_file(tmp_path, HEAD + "ACD,HEH,train\nCDE,HXE,test\n", "table", type="residue_class", unseen="skip")
    assert letters_of(residues, "test", 0) == "H-E"


def test_numbered_classes_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    loaded = one_file(tmp_path, "seq,label\nACDEF,10\nCDEFG,9\nDEFGH,-1\n", "table")
    assert loaded.data.classes == ("-1", "9", "10")


def test_maps_of_task_and_source(tmp_path: Path) -> None:
    """The file's map gives names, the task's map joins them; null leaves out; what is missing stays missing."""
    settings = {
        "classes": ["helix", "other"],
        "label_map": {"H": "helix", "G": "helix", "C": "other"},
        "type": "residue_class",
    }
    loaded = one_file(tmp_path, "seq,label\nACDEFG,012?93\n", "table", source={"label_map": {0: "H", 1: "G", 2: "C", 3: "C", 9: None}}, **settings)  # type: ignore[arg-type]  # fmt: skip # passed through
    assert letters_of(loaded, "train", 0) == "hho--o"
    assert loaded.account.left_out == {"9": 1}
    assert loaded.account.n_unknown == 2
    assert (np.asarray(loaded.data.splits["train"].labels[0]) == MISSING).sum() == 2


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"classes": ["a", "a"]}, "a name stands twice"),
        ({"classes": ["a", True]}, "put the names in quotes"),
        ({"label_map": {True: "a"}}, "put the label in quotes"),
        ({"classes": ["a", "b"], "label_map": {"x": "c"}}, r"label_map: x: 'c' is none of the classes a, b"),
        ({"type": "sequence_value", "classes": ["a"]}, "classes: a sequence_value task has none"),
        ({"type": "sequence_value", "label_map": {"a": "b"}}, "has values, not classes"),
        ({"value_range": [0, 1]}, "value_range"),
        ({"type": "sequence_value", "value_range": [1, 0]}, "value_range"),
        ({"restrict": "Y"}, "one label per protein"),
        ({"type": "residue_class", "restrict": "yJ"}, "holds J, y; allowed: ACDEF"),
        ({"type": "pair"}, "kind table does not fit a pair task"),
        ({"threshold": 2.0}, "threshold"),
        ({"nam": "x"}, "did you mean 'name'"),
        ({"title": 7}, "title"),
        ({"valid": {"fraction": 1.5}}, "valid.fraction"),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path: Path, settings: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        one_file(tmp_path, HEAD + "ACDEF,a,train\n", "table", **settings)  # type: ignore[arg-type]  # passed through


def test_repeats_and_contradictions_are_counted(tmp_path: Path) -> None:
    text = HEAD + "ACDEF,a,train\nACDEF,b,train\nACDEF,a,train\nCDEFG,b,train\nCDEFG,b,train\n"
    warnings = one_file(tmp_path, text, "table").data.warnings
    assert "train: 3 of 5 examples repeat a sequence of the split, 1 sequences with labels that differ" in warnings


def test_a_test_of_one_class_and_proteins_without_labels(tmp_path: Path) -> None:
    warnings = one_file(tmp_path, HEAD + "ACDEF,a,train\nCDEFG,b,train\nDEFGH,a,test\n", "table").data.warnings
    assert "test: all labels are 'a'; most scores are undefined there" in warnings
    text = HEAD + "ACDEF,HEHEH,train\nCDEFG,?????,train\n"
    warnings = one_file(tmp_path, text, "table", type="residue_class").data.warnings
    assert "train: 1 of 2 proteins have no label that counts" in warnings


def test_near_neighbours_are_told_with_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    train = [protein(rng, 80) for _ in range(10)]
    near = [mutant(rng, train[3], 4), mutant(rng, train[5], 12)]
    rows = [(text, "train") for text in train] + [(text, "test") for text in (*near, protein(rng, 80), "ACDE")]
    text = HEAD + "".join(f"{sequence},{row % 2},{split}\n" for row, (sequence, split) in enumerate(rows))
    loaded = one_file(tmp_path, text, "table", neighbours=True)
    facts = loaded.neighbours["test"]
    assert (facts["n_compared"], facts["n_too_short"], facts["n_near"]) == (3, 1, 2)
    assert sum(count for _, count in facts["nearest_identity_histogram"]) == 3
    assert any(
        warning.startswith("test: 2 of 3 sequences have a near neighbour in train")
        and warning.endswith("data-11 and data-4")
        for warning in loaded.data.warnings
    )
    variants = loaded.config.model_copy(update={"wild_type": train[0]})
    assert check_neighbours(variants, loaded.data)[1] == []


def test_dna_is_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = HEAD + "".join(f"{''.join(rng.choice(list('ACGT'), 90))},{row % 2},train\n" for row in range(6))
    assert any("looks like nucleotides" in warning for warning in one_file(tmp_path, text, "table").data.warnings)
