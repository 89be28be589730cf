"""The causal floors against counts done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protlat.alphabet import PROTEIN
from protlat.data.next_token import NextTokenDataset
from protlat.data.pieces import Spans
from protlat.training.next_token_floors import NextTokenFloors
from tests.training.test_floors import STRENGTH, TRAIN, Source

N_POSSIBLE = len(PROTEIN) - len(PROTEIN.special_ids) + 1
STREAMS = [f"^^{s}$" for s in TRAIN]


def count(pattern: str) -> int:
    """Occurrences of (two before, one before, next); "*" is any."""
    triples = [s[i : i + 3] for s in STREAMS for i in range(len(s) - 2)]
    return sum(all(p in ("*", x) for p, x in zip(pattern, t, strict=True)) for t in triples)


def p1(x: str) -> float:
    return (count(f"**{x}") + 1) / (count("***") + N_POSSIBLE)


def p2(x: str, b: str) -> float:
    return (count(f"*{b}{x}") + STRENGTH * p1(x)) / (count(f"*{b}*") + STRENGTH)


def p3(x: str, a: str, b: str) -> float:
    return (count(f"{a}{b}{x}") + STRENGTH * p2(x, b)) / (count(f"{a}{b}*") + STRENGTH)


def test_scores_are_the_formulas() -> None:
    dataset = NextTokenDataset(Source(["ACD", "DY"]), PROTEIN, 100, 0)
    floors = NextTokenFloors(Source(TRAIN), PROTEIN, max_tokens=10**6)
    assert floors.n_counted == 16
    scores = floors.score(dataset.batch([0, 1], 0), dataset)
    texts = ["^^ACD$", "^^DY$"]
    triples = [s[i : i + 3] for s in texts for i in range(len(s) - 2)]
    for name, expected in (
        ("frequencies", [p1(x) for _, _, x in triples]),
        ("bigram", [p2(x, b) for _, b, x in triples]),
        ("trigram", [p3(x, a, b) for a, b, x in triples]),
    ):
        assert np.exp(-scores[name][0]) == pytest.approx(expected, rel=1e-5)
    best = max("ACD$", key=lambda x: p3(x, "^", "A"))
    assert bool(scores["trigram"][1][1]) == (best == "C")


def test_a_batch_that_goes_on_knows_the_token_before_it() -> None:
    dataset = NextTokenDataset(Source(["ACDA"]), PROTEIN, 2, 0, "pieces")
    floors = NextTokenFloors(Source(TRAIN), PROTEIN, max_tokens=10**6)
    whole = floors.score(NextTokenDataset(Source(["ACDA"]), PROTEIN, 9, 0).batch([0], 0), dataset)["trigram"][0]
    going_on = Spans(*(np.array(x) for x in ([0], [2], [3], [0], [0])))
    found = floors.score(dataset.batch(going_on, 0), dataset)["trigram"][0]
    assert found == pytest.approx(whole[2:], rel=1e-9)
    apart = floors.score(dataset.batch([1], 0), dataset)["trigram"][0]
    assert math.exp(-apart[0]) == pytest.approx(p3("D", "^", "C"), rel=1e-5)


def test_probabilities_sum_to_one() -> None:
    floors = NextTokenFloors(Source(TRAIN), PROTEIN, max_tokens=10**6)
    for table in (floors._unigram, floors._bigram, floors._trigram):
        assert table.sum(-1) == pytest.approx(np.ones(table.shape[:-1]), rel=1e-5)
        assert (table[..., PROTEIN.cls_id] == 0).all()
