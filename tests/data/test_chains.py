"""Lines of chains: what is read back, what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from protlat.data.chains import index_of_numbers, read_line
from protlat.errors import SequenceError

POINTS = [[0.0, 0.0, 0.0], [3.8, 0.0, 0.0], [7.6, 0.5, 0.25]]
GOOD: dict[str, Any] = {
    "id": "one",
    "seq": "AGC",
    "ca": POINTS,
    "cb": [[1, 1, 1], None, [2, 2, 2]],
    "resnum": ["5", "6", "9"],
}


def test_a_line_is_read_and_written_back() -> None:
    chain = read_line(json.dumps({**GOOD, "breaks": [1], "cluster": 4, "source": "x"}), "f:1")
    assert (chain.identifier, chain.residues, chain.cluster) == ("one", "AGC", 4)
    assert chain.index.tolist() == [0, 1, 4]
    # Glycine counts by its C-alpha.
    np.testing.assert_array_equal(chain.contact_atoms, np.float32([[1, 1, 1], [3.8, 0, 0], [2, 2, 2]]))
    again = read_line(chain.to_line(), "f:1")
    assert again.to_line() == chain.to_line()
    np.testing.assert_array_equal(again.index, chain.index)


@pytest.mark.parametrize(
    ("numbers", "breaks", "expected"),
    [
        (["1", "2", "3", "4"], [], [0, 1, 2, 3]),
        (["1", "2", "30", "31"], [], [0, 1, 2, 3]),  # a jump without a gap
        (["1", "2", "30", "31"], [1], [0, 1, 29, 30]),
        (["1", "1A", "1B", "2"], [1], [0, 1, 3, 4]),  # a gap without a jump: one residue at least
        (["9", "8", "3", "2"], [1], [0, 1, 3, 4]),
        ([], [0, 2], [0, 2, 3, 5]),
        (["-3", "-2", "2", "x"], [1, 2], [0, 1, 5, 7]),
    ],
)
def test_authors_numbers_count_at_breaks_only(numbers: list[str], breaks: list[int], expected: list[int]) -> None:
    assert index_of_numbers(numbers, breaks, 4).tolist() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "key 'id'"),
        ({"seq": ""}, "key 'seq'"),
        ({"seq": "AÄC"}, "beyond ASCII"),
        ({"ca": POINTS[:2]}, "key 'ca': expected 3 points, one per residue, found 2"),
        ({"cb": None}, "key 'cb': expected 3 points, one per residue, found none"),
        ({"cb": [[1, 2], [1, 2], [1, 2]]}, r"key 'cb': every point must be \[x, y, z\] or null"),
        ({"cb": [[1, 2, "x"], None, None]}, "key 'cb': every point"),
        ({"resnum": ["1"]}, "key 'resnum': expected 3 numbers"),
        ({"breaks": [3]}, "key 'breaks': expected places from 0 to 2"),
        ({"index": [0, 1]}, "key 'index': expected 3 whole numbers"),
        ({"index": [0, 2, 2]}, "must ascend, but 2 is followed by 2"),
    ],
)
def test_faults_are_named_with_file_line_and_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SequenceError, match=message) as caught:
        read_line(json.dumps({**GOOD, **change}), "chains.jsonl:7")
    assert str(caught.value).startswith("chains.jsonl:7: ")


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', b"\xff"])
def test_what_is_no_line_of_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(SequenceError, match=r"chains\.jsonl:7: (not a line of JSON|expected a JSON object)"):
        read_line(text, "chains.jsonl:7")
