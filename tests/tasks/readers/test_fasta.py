"""Labels in FASTA headers and in parallel FASTA files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import zstandard

from protlat.errors import ConfigError, SequenceError
from tests.tasks.tools import FILES, letters_of, one_file, task, text_of

HEADERS = """>a TARGET=Nucleus SET=train VALIDATION=False
ACDEFGHIK
>b TARGET=Cytoplasm SET=train VALIDATION=True
CDEFGHIKL
>c TARGET=Nucleus SET=test
DEFGHIKLM
>d TARGET=Cytoplasm SET=train
EFGHIKLMN
"""
STRUCTURE = {"kind": "fasta", "path": "structure.fasta", "labels": "structure_labels.fasta"}


def test_labels_and_splits_in_headers(tmp_path: Path) -> None:
    loaded = one_file(tmp_path, HEADERS)
    assert loaded.data.classes == ("Cytoplasm", "Nucleus")
    assert {name: split.names for name, split in loaded.data.splits.items()} == {
        "train": ("a", "d"),
        "valid": ("b",),
        "test": ("c",),
    }
    np.testing.assert_array_equal(loaded.data.splits["train"].labels, [1, 0])
    assert text_of(loaded.data.splits["test"].ids[0]) == "DEFGHIKLM"


@pytest.mark.parametrize("change", ["crlf", "bom", "gzip", "zstd", "old mac", "set=val", "wrapped"])
def test_the_same_from_other_files(tmp_path: Path, change: str) -> None:
    raw = HEADERS.encode()
    changed = {
        "crlf": raw.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + raw,
        "gzip": gzip.compress(raw),
        "zstd": zstandard.ZstdCompressor().compress(raw),
        "old mac": raw.replace(b"\n", b"\r"),
        "set=val": raw.replace(b"SET=train VALIDATION=True", b"SET=val"),
        "wrapped": raw.replace(b"CDEFGHIKL\n", b"CDEF\nGHIKL\n"),
    }[change]
    first, second = one_file(tmp_path, raw).data, one_file(tmp_path, changed, name="other").data
    assert first.classes == second.classes
    for name, split in first.splits.items():
        assert split.names == second.splits[name].names
        assert split.fingerprint() == second.splits[name].fingerprint()
        np.testing.assert_array_equal(split.labels, second.splits[name].labels)


def test_a_record_without_set_among_others(tmp_path: Path) -> None:
    with pytest.raises(
        SequenceError, match=r"data:9: e: names no split \(SET=train, valid or test\), but other records"
    ):
        one_file(tmp_path, HEADERS + ">e TARGET=Nucleus\nACDEF\n")


def test_without_any_set_all_are_train(tmp_path: Path) -> None:
    loaded = one_file(tmp_path, ">a TARGET=x\nACDEF\n>b TARGET=y\nCDEFG\n")
    assert list(loaded.data.splits) == ["train"]


def test_validation_that_is_no_truth_value(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match="data:1: a: VALIDATION is 'perhaps'; allowed: True, False or nothing"):
        one_file(tmp_path, ">a TARGET=x SET=train VALIDATION=perhaps\nACDEF\n")


def test_records_without_label_are_left_out_and_counted(tmp_path: Path) -> None:
    loaded = one_file(
        tmp_path, HEADERS + ">e SET=train\nACDEF\n>f TARGET= SET=train\nACDEF\n>g TARGET=nan SET=test\nACDEF\n"
    )
    assert sum(map(len, loaded.data.splits.values())) == 4
    assert loaded.report.reasons["no label"] == 3
    assert [skipped.identifier for skipped in loaded.report.skipped] == ["e", "f", "g"]


def test_words_of_the_header() -> None:
    source = {"kind": "fasta", "path": "locations.fasta", "word": 1, "pattern": "^(.+)-[MSU]$", "split": "train"}
    loaded = task(FILES, [source], label_map={"Cytoplasm-Nucleus": None})
    assert len(loaded.data.classes) == 9
    assert "Cytoplasm-Nucleus" not in loaded.data.classes
    assert loaded.account.left_out == {"Cytoplasm-Nucleus": 1}
    membrane = task(FILES, [{**source, "pattern": "-([MSU])$"}], classes=["soluble", "membrane"], label_map={"S": "soluble", "M": "membrane", "U": None})  # fmt: skip
    assert membrane.account.left_out["U"] + len(membrane.data.splits["train"]) == 16


@pytest.mark.parametrize(("pattern", "fault"), [("(", "not a regular expression"), ("a", "exactly one group"), ("(a)(b)", "it has 2")])  # fmt: skip
def test_patterns_that_cannot_be_meant(tmp_path: Path, pattern: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        one_file(tmp_path, HEADERS, source={"pattern": pattern})


def test_parallel_files_with_a_mask() -> None:
    loaded = task(FILES, [{**STRUCTURE, "mask": "structure_mask.fasta"}], type="residue_class", classes=["H", "E", "C"])
    assert [len(split) for split in loaded.data.splits.values()] == [6, 2, 2]
    records = (FILES / "structure.fasta").read_text().split()
    labels = (FILES / "structure_labels.fasta").read_text().split("\n")
    mask = (FILES / "structure_mask.fasta").read_text().split()
    split = loaded.data.splits["train"]
    row = split.names.index(records[0][1:])
    assert text_of(split.ids[row]) == records[1]
    expected = "".join(letter if is_kept == "1" else "-" for letter, is_kept in zip(labels[1], mask[1], strict=True))
    assert letters_of(loaded, "train", row) == expected
    n_hidden = sum(text.count("0") for text in mask[1::2])
    assert loaded.account.n_masked == n_hidden > 0


def test_sequences_and_labels_without_partner(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text(">a\nHH\n>z\nEE\n>b\nHE\n")
    loaded = one_file(tmp_path, ">b\nAC\n>x\nAC\n>a\nCD\n", source={"labels": "labels"}, type="residue_class")
    assert loaded.data.splits["train"].names == ("b", "a")
    assert loaded.report.reasons["no label"] == 1
    assert "labels: 1 records have no sequence in data (the first: z)" in loaded.data.warnings


def test_identifiers_that_recur(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text(">a\nHH\n>b\nEE\n>a\nHE\n")
    with pytest.raises(SequenceError, match=r"labels:5: a: the identifier also stands at line 1"):
        one_file(tmp_path, ">a\nAC\n>b\nAC\n", source={"labels": "labels"}, type="residue_class")
    loaded = one_file(tmp_path, ">a TARGET=x\nAC\n>a TARGET=y\nCD\n>a TARGET=y\nDE\n")
    assert loaded.data.splits["train"].names == ("a", "a#2", "a#3")
    assert any("2 identifiers stand more than once" in warning for warning in loaded.data.warnings)


def test_a_missing_file_and_its_neighbour(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match=r"no such file; --data names the folder"):
        task(tmp_path, [{"kind": "fasta", "path": "not.fasta"}])
    (tmp_path / "is.fasta").write_text(HEADERS)
    assert len(task(tmp_path, [{"kind": "fasta", "path": "is.fasta.gz"}]).data.splits["train"]) == 2
