"""CSV, TSV and Parquet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protlat.errors import SequenceError
from tests.tasks.tools import FILES, letters_of, one_file, task, text_of

TABLE = (
    "sequence,target,set,validation\nACDEF,1.5,train,\nCDEFG,2.5,train,True\nDEFGH,3.5,test,\nEFGHI,0.5,train,False\n"
)


def values(folder: Path, text: str | bytes, **settings: object) -> dict[str, list[float]]:
    loaded = one_file(folder, text, "table", "data.csv", type="sequence_value", **settings)  # type: ignore[arg-type]  # passed through
    return {name: np.asarray(split.labels).tolist() for name, split in loaded.data.splits.items()}


def test_columns_by_their_usual_names(tmp_path: Path) -> None:
    assert values(tmp_path, TABLE) == {"train": [1.5, 0.5], "valid": [2.5], "test": [3.5]}


@pytest.mark.parametrize(
    "text",
    [
        TABLE.replace("\n", "\r\n"),
        "\ufeff" + TABLE,
        TABLE.replace(",", "\t"),
        TABLE.replace(",", ";"),
        TABLE + "\n\n,,,\n",
        '"sequence","target","set","validation"\n"ACDEF","1.5","train",""\n"CDEFG","2.5",train,"True"\nDEFGH,3.5,test,\n"EFG\nHI",0.5,train,False\n',
        "Sequence , TARGET,set,validation\n ACDEF ,1.5,train,\nCDEFG, 2.5 ,train,True\nDEFGH,3.5,test,\nEFGHI,0.5,train,False",
    ],
    ids=["crlf", "bom", "tabs", "semicolons", "blank lines", "quoted", "blanks in cells"],
)
def test_the_same_from_other_files(tmp_path: Path, text: str) -> None:
    assert values(tmp_path, text) == values(tmp_path, TABLE)


def test_parquet(tmp_path: Path) -> None:
    table = pa.table({"seq": ["ACDEF", "CDEFG"], "label": [["H", "H", "E", "C", "C"], ["C"] * 5], "mask": [[True, True, False, True, True], [True] * 5]})  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    loaded = task(tmp_path, [{"kind": "table", "path": "a.parquet"}], type="residue_class")
    assert letters_of(loaded, "train", 0) == "HH-CC"
    assert loaded.data.splits["train"].names == ("a-1", "a-2")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:200])
    with pytest.raises(SequenceError, match=r"a\.parquet: damaged Parquet file"):
        task(tmp_path, [{"kind": "table", "path": "a.parquet"}], type="residue_class")


def test_missing_values_are_left_out_and_counted(tmp_path: Path) -> None:
    loaded = one_file(tmp_path, "seq,label\nACDEF,1\nCDEFG,\nDEFGH,nan\nEFGHI,2\n", "table", type="sequence_value")
    assert loaded.data.splits["train"].names == ("data-1", "data-4")
    assert loaded.report.reasons["no label"] == 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty file"),
        (",", "empty file"),
        ("a,b\nACDEF,1\n", r"which column is the sequence\? none is called sequence or seq .* one of 'a', 'b'"),
        ("seq,b\nACDEF,1\n", r"which column is the label\?"),
        ("seq,label\nACDEF,1,2\n", r"data:2: 3 columns, where the first line names 2: seq, label"),
        ('seq,label\nACDEF,"1\n', r"data:2: not a table: unexpected end of data"),
        ("seq,label,seq\nACDEF,1,AC\n", r"the first line names 'seq' twice"),
        ("seq,label\nACDEF,high\n", r"data:2: data-1: label 'high' is not a number"),
        ("seq,label\nACDEF,inf\n", r"data:2: data-1: label 'inf' is not finite"),
        ("seq,label\nACDEF,7\n", r"data:2: data-1: label 7 is out of range; allowed: 0 to 5"),
        (b"seq,label\nACDEF,1\nCD\xffEF,1\n", r"data:3: byte 0xFF is not UTF-8 text"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, text: str | bytes, fault: str) -> None:
    with pytest.raises(SequenceError, match=fault):
        one_file(tmp_path, text, "table", type="sequence_value", value_range=[0, 5])


def test_a_column_asked_for_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match=r"no column 'fitness' \(label\); there are: 'seq', 'label'"):
        one_file(tmp_path, "seq,label\nACDEF,1\n", "table", type="sequence_value", source={"label": "fitness"})


def test_several_labels_in_a_cell() -> None:
    source = {"kind": "table", "path": "enzymes.tsv", "label": "EC number", "split": "train"}
    loaded = task(FILES, [source], type="sequence_multilabel")
    split = loaded.data.splits["train"]
    labels = np.asarray(split.labels)
    assert labels.shape == (8, len(loaded.data.classes))
    named = {loaded.data.classes[column] for column in np.flatnonzero(labels[split.names.index("P35946")])}
    assert named == {"2.7.7.48", "2.7.7.88", "2.1.1.375"}
    rare = task(FILES, [source], type="sequence_multilabel", min_count=2)
    assert set(rare.data.classes) == {"1.2.5.3", "3.2.1.132", "3.2.1.14"}
    assert (
        "train: 6 classes with fewer than 2 examples left out, and 4 examples that had no other" in rare.data.warnings
    )


def test_masks_in_a_second_table(tmp_path: Path) -> None:
    (tmp_path / "masks.csv").write_text("seq,label\nACDEF,11011\nCDEFG,01111\n")
    beside = {"mask_path": "masks.csv", "mask": "label"}
    text = "seq,label\nACDEF,00112\nCDEFG,22222\n"
    loaded = one_file(tmp_path, text, "table", type="residue_class", source=beside)
    assert [letters_of(loaded, "train", row) for row in (0, 1)] == ["00-12", "-2222"]
    with pytest.raises(SequenceError, match=r"data:2: masks\.csv has another sequence in this row"):
        one_file(tmp_path, text.replace("ACDEF", "ACDEE"), "table", type="residue_class", source=beside)


def test_leading_zeros_of_residue_labels_stay(tmp_path: Path) -> None:
    loaded = one_file(tmp_path, "seq,label\nACDEF,00012\nCDEFG,01222\n", "table", type="residue_class")
    assert letters_of(loaded, "train", 0) == "00012"
    assert text_of(loaded.data.splits["train"].ids[0]) == "ACDEF"
