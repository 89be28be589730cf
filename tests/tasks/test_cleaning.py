"""Labels stay with their residues whatever the sequence policy drops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protlat.data.policies import SequencePolicy
from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.cleaning import clean, kept_places
from protlat.tasks.readers.base import RawSet
from tests.tasks.tools import letters_of, one_file, text_of

# Each piece: what is written, and whether a residue of it is kept.
PIECES = st.lists(
    st.sampled_from([("A", True), ("w", True), ("U", True), (" ", False), ("7", False), ("-", False), ("\t", False)]),
    min_size=1,
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(PIECES, st.integers(0, 3)), min_size=1, max_size=5), st.integers(0, 2))
def test_labels_follow_their_residues(records: list[tuple[list[tuple[str, bool]], int]], written_as: int) -> None:
    raw = RawSet("file")
    expected: dict[int, str] = {}
    for row, (pieces, n_stops) in enumerate(records):
        text = "".join(letter for letter, _ in pieces) + "*" * n_stops
        marks = "".join(chr(0x100 + place) for place in range(len(text)))
        residues = [mark for (_, is_kept), mark in zip(pieces, marks, strict=False) if is_kept]
        # As many labels as characters, as characters without blanks and digits, or as residues.
        visible = [mark for letter, mark in zip(text, marks, strict=True) if letter not in " \t7"]
        label = "".join((marks, visible, residues)[written_as])
        raw.add(f"n{row}", text.encode(), row + 1, label)
        expected[row] = "".join(residues)
    for record in clean(raw, SequencePolicy(gaps="strip"), SequenceReport()):
        label = raw.labels[record.row]
        assert isinstance(label, str)
        places = kept_places(record, len(label), raw)
        kept = label if places is None else "".join(label[place] for place in places)
        assert kept == expected.pop(record.row)
    assert all(text == "" for text in expected.values())  # left out: nothing but what is dropped


@pytest.mark.parametrize(
    ("sequence", "labels"),
    [
        ("acdEF", "HHEEC"),
        ("ACDEF*", "HHEEC"),
        ("ACDEF*", "HHEECC"),
        ("ACD EF", "HHEEC"),
        ("ACD EF", "HHE EC"),
        ("10 ACDEF", "HHEEC"),
        ("UCDZF", "HHEEC"),
    ],
)
def test_letters_that_are_dropped_or_changed(tmp_path: Path, sequence: str, labels: str) -> None:
    (tmp_path / "labels").write_text(f">a\n{labels}\n>b\nHHEEC\n")
    loaded = one_file(tmp_path, f">a\n{sequence}\n>b\nACDEF\n", source={"labels": "labels"}, type="residue_class", missing=[" "])  # fmt: skip
    assert letters_of(loaded, "train", 0) == "HHEEC"
    assert len(text_of(loaded.data.splits["train"].ids[0])) == 5


def test_a_mask_token_has_one_label(tmp_path: Path) -> None:
    loaded = one_file(tmp_path, "seq,label\nAC<mask>EF,HHECC\n", "table", type="residue_class")
    assert letters_of(loaded, "train", 0) == "HHECC"
    assert text_of(loaded.data.splits["train"].ids[0]) == "AC<mask>EF"


def test_other_lengths_are_errors_or_left_out(tmp_path: Path) -> None:
    text = "seq,label\nACDEF,HHEEC\nACDEF*,HHEE\nCDEFG,HHEEE\n"
    with pytest.raises(SequenceError, match=r"data:3: data-2: 4 labels for 5 residues \(6 characters as written\); inconsistent: skip leaves"):  # fmt: skip
        one_file(tmp_path, text, "table", type="residue_class")
    loaded = one_file(tmp_path, text, "table", type="residue_class", inconsistent="skip")
    assert loaded.data.splits["train"].names == ("data-1", "data-3")
    assert loaded.report.reasons == {"labels do not fit": 1}
    assert loaded.report.n_kept == 2
    assert loaded.report.n_residues_kept == 10
    with pytest.raises(SequenceError, match=r"data:2: data-1: 4 mask characters for 5 residues"):
        one_file(tmp_path, "seq,label,mask\nACDEF,HHEEC,1111\n", "table", type="residue_class")
    with pytest.raises(SequenceError, match=r"data:2: data-1: mask has '2' at position 3; allowed: 1 \(scored\)"):
        one_file(tmp_path, "seq,label,mask\nACDEF,HHEEC,11211\n", "table", type="residue_class")


def test_policies_that_stop_or_skip(tmp_path: Path) -> None:
    text = "seq,label\nAC-EF,1\nACDEF,2\nACUEF,3\nAC1DE,4\nAC!DE,5\n"
    with pytest.raises(SequenceError, match=r"data:2: data-1: gap - at position 3"):
        one_file(tmp_path, text, "table", type="sequence_value")
    loaded = one_file(tmp_path, text, "table", type="sequence_value", policy={"gaps": "skip", "unknown": "skip"})
    assert loaded.data.splits["train"].names == ("data-2", "data-4")
    assert set(loaded.report.reasons) == {"gap", "unknown residue", "character that is no residue"}


def test_values_of_residues(tmp_path: Path) -> None:
    loaded = one_file(tmp_path, 'seq,label\nACD,0.5;1;nan\nCDE*,1 2 3 4\nDEF,"1,2,3"\n', "table", type="residue_value")
    labels = loaded.data.splits["train"].labels
    np.testing.assert_array_equal(np.asarray(labels), np.float32([[0.5, 1, np.nan], [1, 2, 3], [1, 2, 3]]))
    with pytest.raises(SequenceError, match=r"data:2: data-1: residue 2: label 'x' is not a number"):
        one_file(tmp_path, "seq,label\nACD,0.5;x;1\n", "table", type="residue_value")
