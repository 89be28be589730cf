"""Splits cut from train, cross-validation, overlap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protlat.errors import ConfigError, SequenceError
from protlat.tasks.load import LoadedTask
from tests.tasks.tools import mutant, one_file, protein, task, text_of


def families(n_families: int, n_each: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [mutant(rng, parent, 4) for parent in [protein(rng, 80) for _ in range(n_families)] for _ in range(n_each)]


def table(sequences: list[str]) -> str:
    return "seq,label\n" + "".join(f"{text},{row % 2}\n" for row, text in enumerate(sequences))


def names(loaded: LoadedTask) -> dict[str, set[str]]:
    return {name: {text_of(ids) for ids in split.ids} for name, split in loaded.data.splits.items()}


def test_near_sequences_stay_on_one_side(tmp_path: Path) -> None:
    sequences = families(40, 5)
    loaded = one_file(
        tmp_path, table(sequences), "table", neighbours=True, valid={"fraction": 0.2}, test={"fraction": 0.2}
    )
    sizes = {name: len(split) for name, split in loaded.data.splits.items()}
    assert sizes == {"train": 128, "valid": 32, "test": 40} or (
        sum(sizes.values()) == 200 and min(sizes.values()) >= 28
    )
    side = {text: name for name, texts in names(loaded).items() for text in texts}
    for first in range(0, 200, 5):
        assert len({side[text] for text in sequences[first : first + 5]}) == 1
    assert all(facts["n_near"] == 0 for facts in loaded.neighbours.values())
    assert len(loaded.notes) == 2


def test_a_cut_does_not_depend_on_the_order_but_on_the_seed(tmp_path: Path) -> None:
    sequences = families(30, 2)

    def cut(texts: list[str], seed: int) -> dict[str, set[str]]:
        return names(one_file(tmp_path, table(texts), "table", valid={"fraction": 0.2, "seed": seed}))

    first = cut(sequences, 0)
    assert first == cut(list(reversed(sequences)), 0)
    assert first != cut(sequences, 1)


def test_variants_of_one_protein_are_cut_one_by_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parent = protein(rng, 60)
    sequences = [mutant(rng, parent, 2) for _ in range(50)]
    loaded = one_file(tmp_path, table(sequences + sequences[:10]), "table", valid={"fraction": 0.2})
    assert any("variants of one protein" in note for note in loaded.notes)
    split = names(loaded)
    assert not split["train"] & split["valid"]
    assert 10 <= len(loaded.data.splits["valid"]) <= 14
    with pytest.raises(SequenceError, match=r"its 50 sequences are all near each other; keep_together: identical"):
        one_file(tmp_path, table(sequences), "table", valid={"fraction": 0.2, "keep_together": "near"})


def test_a_family_is_cut_while_others_stay_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parent = protein(rng, 60)
    pairs = families(10, 2, seed=3)
    loaded = one_file(
        tmp_path, table([mutant(rng, parent, 2) for _ in range(50)] + pairs), "table", valid={"fraction": 0.3}
    )
    side = {text: name for name, texts in names(loaded).items() for text in texts}
    assert all(side[pairs[row]] == side[pairs[row + 1]] for row in range(0, 20, 2))


def test_files_that_bring_splits_are_not_cut(tmp_path: Path) -> None:
    text = "seq,label,set\n" + "".join(f"{text},{row % 2},{('train', 'valid', 'test')[row % 3]}\n" for row, text in enumerate(families(12, 1)))  # fmt: skip
    loaded = one_file(tmp_path, text, "table", valid={"fraction": 0.3}, test={"fraction": 0.3})
    assert {name: len(split) for name, split in loaded.data.splits.items()} == {"train": 4, "valid": 4, "test": 4}
    assert loaded.notes == ()


def test_too_few_to_cut(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match="valid cannot be cut from 1 training examples"):
        one_file(tmp_path, "seq,label\nACDEF,1\n", "table", valid={"fraction": 0.1})


def parts(folder: Path, **settings: object) -> LoadedTask:
    sequences = families(40, 1)
    for number in range(4):
        (folder / f"p{number}").write_text(table(sequences[10 * number : 10 * number + 10]))
    sources = [{"kind": "table", "path": f"p{number}", "split": f"p{number}"} for number in range(4)]
    return task(folder, sources, cross_validation={"parts": ["p0", "p1", "p2", "p3"], **settings})


def test_parts_of_the_files(tmp_path: Path) -> None:
    tests = [names(parts(tmp_path, fold=fold))["test"] for fold in range(4)]
    assert len(set.union(*tests)) == 40
    loaded = parts(tmp_path, fold=3, valid="next")
    assert {name: len(split) for name, split in loaded.data.splits.items()} == {"train": 20, "valid": 10, "test": 10}
    assert names(loaded)["valid"] == tests[0]
    assert loaded.notes == ("cross-validation: test p3, train p1, p2, valid p0",)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"fold": 4}, "fold 4: there are 4 parts, numbered from 0"),
        ({"parts": ["p0", "p1"], "valid": "next"}, "needs at least 3 parts"),
    ],
)
def test_folds_that_are_not(tmp_path: Path, settings: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parts(tmp_path, **settings)


def test_parts_that_the_files_lack(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match="no split 'x'; the files have: p0, p1, p2, p3"):
        parts(tmp_path, parts=["p0", "x"])


def test_parts_dealt_from_train(tmp_path: Path) -> None:
    sequences = families(15, 4)
    found = [
        names(one_file(tmp_path, table(sequences), "table", cross_validation={"n_folds": 3, "fold": fold}))
        for fold in range(3)
    ]
    assert len(set.union(*(one["test"] for one in found))) == 60
    assert [len(one["test"]) for one in found] == [20, 20, 20]
    for one in found:
        assert not one["train"] & one["test"]
        assert all(len({text in one["test"] for text in sequences[row : row + 4]}) == 1 for row in range(0, 60, 4))


def overlapping(folder: Path, **settings: object) -> LoadedTask:
    text = "id,seq,label,set\na,ACDEF,0,train\nb,CDEFG,1,train\nc,DEFGH,0,train\nd,ACDEF,1,valid\ne,acdef,0,test\nf,EFGHI,1,test\n"
    return one_file(folder, text, "table", **settings)  # type: ignore[arg-type]  # passed through


def test_sequences_in_train_and_test(tmp_path: Path) -> None:
    sizes = lambda loaded: [len(split) for split in loaded.data.splits.values()]  # noqa: E731  # one line
    told = overlapping(tmp_path)
    assert sizes(told) == [3, 1, 2]
    assert "test: 1 of 2 sequences are also in train or valid" in told.data.warnings[0]
    assert "e (" in told.data.warnings[0]
    assert "valid: 1 of 1 sequences are also in train" in told.data.warnings
    assert overlapping(tmp_path, overlap="drop_test").data.splits["test"].names == ("f",)
    with pytest.raises(SequenceError, match=r"1 of 2 sequences are also in train or valid; the first: e .*; overlap: drop_train or drop_test"):  # fmt: skip
        overlapping(tmp_path, overlap="error")
    with pytest.raises(SequenceError, match="no examples in split 'valid'"):
        overlapping(tmp_path, overlap="drop_train")
