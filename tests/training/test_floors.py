"""The two floors against counts done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from protlat.alphabet import PROTEIN
from protlat.data.batch import TrainingBatch
from protlat.data.masking import MaskingConfig
from protlat.ops.segments import Segments
from protlat.training.floors import Floors

STRENGTH = 20.0
N_PLAIN = len(PROTEIN) - len(PROTEIN.special_ids)


class Source:
    def __init__(self, sequences: list[str]) -> None:
        self._ids = [PROTEIN.encode(s) for s in sequences]
        self.lengths = np.array([len(s) for s in sequences])

    def __len__(self) -> int:
        return len(self._ids)

    def tokens(self, index: int) -> np.ndarray:
        return self._ids[index]

    def id(self, index: int) -> str:
        return str(index)


TRAIN = ["ACD", "ACA", "CCD", "DAC"]


def batch_of(shown: list[int], truth: list[int], at: list[int]) -> TrainingBatch:
    targets = torch.tensor(truth)[at]
    tokens = torch.tensor(shown)
    rows = np.zeros(len(at), dtype=np.int64)
    return TrainingBatch(tokens, Segments([len(shown)]), torch.tensor(at), targets, rows, np.array([0]), 0)


def encode(text: str) -> list[int]:
    ids = PROTEIN.encode(text.replace("_", "<mask>")).tolist()
    return [PROTEIN.cls_id, *ids, PROTEIN.eos_id]


def p1(residue: str) -> float:
    return (sum(s.count(residue) for s in TRAIN) + 1) / (sum(map(len, TRAIN)) + N_PLAIN)


def count(pattern: str) -> int:
    """Occurrences of left neighbour, residue, right neighbour; "*" is any, "^" and "$" are the ends."""
    triples = [triple for s in TRAIN for triple in zip("^" + s, s, s[1:] + "$", strict=False)]
    return sum(all(p in ("*", x) for p, x in zip(pattern, t, strict=True)) for t in triples)


def p_left(residue: str, left: str) -> float:
    return (count(f"{left}{residue}*") + STRENGTH * p1(residue)) / (count(f"{left}**") + STRENGTH)


def p_right(residue: str, right: str) -> float:
    return (count(f"*{residue}{right}") + STRENGTH * p1(residue)) / (count(f"**{right}") + STRENGTH)


def p_both(residue: str, left: str, right: str) -> float:
    def product(x: str) -> float:
        return p_left(x, left) * p_right(x, right) / p1(x)

    plain = [PROTEIN.tokens[i] for i in range(len(PROTEIN)) if i not in PROTEIN.special_ids]
    back_off = product(residue) / sum(map(product, plain))
    return (count(f"{left}{residue}{right}") + STRENGTH * back_off) / (count(f"{left}*{right}") + STRENGTH)


@pytest.mark.parametrize(
    ("shown", "truth", "at", "expected"),
    [
        ("A_D", "ACD", 2, lambda: p_both("C", "A", "D")),
        ("_CD", "ACD", 1, lambda: p_both("A", "^", "C")),
        ("AC_", "ACD", 3, lambda: p_both("D", "C", "$")),
        ("A__", "ACD", 2, lambda: p_left("C", "A")),
        ("__D", "ACD", 2, lambda: p_right("C", "D")),
        ("___", "ACD", 2, lambda: p1("C")),
    ],
)
def test_trigram_backs_off_where_a_neighbour_is_hidden(shown, truth, at, expected) -> None:  # type: ignore[no-untyped-def]
    floors = Floors(Source(TRAIN), PROTEIN, MaskingConfig(), max_tokens=10**6)
    scores = floors.score(batch_of(encode(shown), encode(truth), [at]))
    assert math.exp(-scores["trigram"][0][0]) == pytest.approx(expected(), rel=1e-5)
    assert math.exp(-scores["frequencies"][0][0]) == pytest.approx(p1(truth[at - 1]), rel=1e-9)
    assert floors.n_counted == 12


def test_a_crop_has_no_right_neighbour_at_its_end() -> None:
    floors = Floors(Source(TRAIN), PROTEIN, MaskingConfig(), max_tokens=10**6)
    two = TrainingBatch(
        torch.tensor([*encode("A_")[:-1], *encode("CD")]),
        Segments([3, 4]),
        torch.tensor([2]),
        torch.tensor(PROTEIN.encode("C").astype(np.int64)),
        np.array([0]),
        np.array([0, 1]),
        0,
    )
    assert math.exp(-floors.score(two)["trigram"][0][0]) == pytest.approx(p_left("C", "A"), rel=1e-5)


def test_a_token_that_is_shown_is_used_by_bayes_rule() -> None:
    masking = MaskingConfig(mask=0.8, random=0.1, keep=0.1)
    floors = Floors(Source(TRAIN), PROTEIN, masking, max_tokens=10**6)
    scores = floors.score(batch_of(encode("AAD"), encode("ACD"), [2]))
    rest = 1 - p1("A")
    chance = p1("C") * 0.005 / (p1("A") * 0.105 + rest * 0.005)
    assert math.exp(-scores["frequencies"][0][0]) == pytest.approx(chance, rel=1e-9)
    assert not scores["frequencies"][1][0]


def test_probabilities_sum_to_one_whatever_the_neighbours() -> None:
    floors = Floors(Source(TRAIN), PROTEIN, MaskingConfig(), max_tokens=10**6)
    torch.testing.assert_close(torch.from_numpy(floors._table.sum(-1)), torch.ones(34, 34), rtol=1e-5, atol=1e-5)


def test_a_large_split_is_thinned_out_evenly() -> None:
    assert Floors(Source(TRAIN * 100), PROTEIN, MaskingConfig(), max_tokens=600).n_counted == 600
