"""Three-line records, inline marks, variants by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protlat.errors import ConfigError, SequenceError
from tests.tasks.tools import FILES, letters_of, one_file, task, text_of

TOPOLOGY = {"classes": ["1", "2", "H", "B", "S"], "label_map": {"h": "H", "b": "B", "U": None}, "type": "residue_class"}
PHOSPHO = {"type": "residue_class", "classes": ["0", "1"], "restrict": "Y"}


def test_three_lines() -> None:
    loaded = task(FILES, [{"kind": "three_line", "path": "topology.3line", "split": "train"}], **TOPOLOGY)
    lines = (FILES / "topology.3line").read_text().splitlines()
    split = loaded.data.splits["train"]
    assert split.names == tuple(line[1:] for line in lines[::3])
    for row, (sequence, labels) in enumerate(zip(lines[1::3], lines[2::3], strict=True)):
        assert text_of(split.ids[row]) == sequence
        assert letters_of(loaded, "train", row) == labels.replace("U", "-").upper()
    assert loaded.account.left_out["U"] == sum(labels.count("U") for labels in lines[2::3])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (">a\nACD\n", r"data:1: 'a' is followed by 1 lines; expected 2"),
        (">a\nACD\n\nHHH\nEEE\n", r"data:1: 'a' is followed by 3 lines"),
        ("ACD\n>a\nACD\nHHH\n", r"data:1: expected a header that starts with '>', found 'ACD'"),
        ("\n\n", "no records"),
        (">a\nACD\nHHHH\n", r"data:1: a: 4 labels for 3 residues"),
    ],
)
def test_three_lines_that_are_not(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(SequenceError, match=fault):
        one_file(tmp_path, text, "three_line", type="residue_class")


def test_three_lines_with_windows_ends_and_splits(tmp_path: Path) -> None:
    text = "\ufeff>a SET=train\r\nACD\r\nHHE\r\n\r\n>b SET=test\r\nCDE\r\nEEH\r\n"
    loaded = one_file(tmp_path, text, "three_line", type="residue_class")
    assert letters_of(loaded, "train", 0) == "HHE"
    assert list(loaded.data.splits) == ["train", "test"]


def test_marks() -> None:
    loaded = task(
        FILES, [{"kind": "marked", "path": "marked.fasta", "marked_residues": "Y", "split": "train"}], **PHOSPHO
    )
    split = loaded.data.splits["train"]
    written = [
        part.partition("\n")[2].replace("\n", "") for part in (FILES / "marked.fasta").read_text().split(">")[1:]
    ]
    for row, text in enumerate(written):
        assert text_of(split.ids[row]) == text.replace("#", "")
        expected = text.replace("Y#", "1").replace("Y", "0")
        assert letters_of(loaded, "train", row) == "".join(x if x in "01" else "-" for x in expected)
    n_elsewhere = sum(len(text.replace("#", "")) - text.count("Y") for text in written)
    assert loaded.account.n_elsewhere == n_elsewhere


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (">a\n#AY\n", r"data:1: a: mark '#' at character 1 follows no residue"),
        (">a\nAY##\n", r"mark '#' at character 4 follows another mark"),
        (">a\nAYS#\n", r"mark '#' on S at position 3; allowed on: Y"),
    ],
)
def test_marks_in_wrong_places(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(SequenceError, match=fault):
        one_file(tmp_path, text, "marked", source={"marked_residues": "Y"}, **PHOSPHO)


def test_marks_of_several_kinds_on_lower_case_residues(tmp_path: Path) -> None:
    source = {"marks": {"#": "phospho", "@": "acetyl"}, "unmarked": "plain"}
    loaded = one_file(tmp_path, ">a\nAy#Ck@*\n", "marked", source=source, type="residue_class")
    assert text_of(loaded.data.splits["train"].ids[0]) == "AYCK"
    assert letters_of(loaded, "train", 0) == "ppp".replace("ppp", "pppa")
    assert [loaded.data.classes[code] for code in loaded.data.splits["train"].labels[0]] == [
        "plain",
        "phospho",
        "plain",
        "acetyl",
    ]  # type: ignore[union-attr]  # codes
    with pytest.raises(ConfigError, match="one ASCII character that is no letter"):
        one_file(tmp_path, ">a\nAY\n", "marked", source={"marks": {"p": "1"}}, **PHOSPHO)


def variants(folder: Path, rows: str, **settings: object) -> object:
    values = {
        "type": "sequence_value",
        "wild_type": "HPETL",
        "offset": 24,
        "zero_shot": True,
        "source": {"split": "test"},
    }
    return one_file(folder, f"mutant,score\n{rows}", "variants", **{**values, **settings})  # type: ignore[arg-type]  # passed through


def test_variants_become_sequences(tmp_path: Path) -> None:
    loaded = variants(tmp_path, "H24C,1\nP25A:L28V,0.5\nwt,0\n")
    split = loaded.data.splits["test"]  # type: ignore[attr-defined]  # a loaded task
    assert [text_of(ids) for ids in split.ids] == ["CPETL", "HAETV", "HPETL"]
    assert split.names == ("H24C", "P25A:L28V", "wt")
    np.testing.assert_array_equal(split.labels, np.float32([1, 0.5, 0]))


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ("A24C,1\n", r"data:2: A24C: the wild type has H at position 24, not A"),
        ("H23C,1\n", r"H23C: position 23 is outside the wild type \(24 to 28\)"),
        ("H24C:H24D,1\n", r"H24C:H24D: position 24 stands twice"),
        ("H24J,1\n", r"J is none of the 20 residues"),
        ("24C,1\n", r"'24C' is not a mutation; expected H24C"),
    ],
)
def test_variants_that_do_not_fit(tmp_path: Path, rows: str, fault: str) -> None:
    with pytest.raises(SequenceError, match=fault):
        variants(tmp_path, rows)


def test_variants_need_a_wild_type(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="variants need wild_type"):
        variants(tmp_path, "H24C,1\n", wild_type="")
