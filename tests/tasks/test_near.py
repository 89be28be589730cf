"""Near neighbours and groups against plain loops over words."""

from __future__ import annotations

import numpy as np
import pytest

from protlat.tasks import near
from tests.tasks.tools import mutant, protein, tokens


def words(sequence: str) -> set[str]:
    return {sequence[place : place + 5] for place in range(len(sequence) - 4)}


def family(rng: np.random.Generator, n: int, length: int, n_changes: int) -> list[str]:
    parent = protein(rng, length)
    return [mutant(rng, parent, n_changes) for _ in range(n)]


def some_sequences(seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    found = [protein(rng, int(length)) for length in rng.integers(1, 90, 30)]
    for _ in range(4):
        found += family(rng, 6, 60, int(rng.integers(1, 14)))
    return found + ["HHHHHHHH" + text for text in found[:4]] + found[:2]


@pytest.mark.parametrize("seed", range(4))
def test_nearest_is_exact(seed: int) -> None:
    texts = some_sequences(seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(texts))
    among, queries = [texts[row] for row in order[:40]], [texts[row] for row in order[40:]]
    found = near.nearest([tokens(text) for text in among], [tokens(text) for text in queries])
    for query, share, row in zip(queries, found.share, found.nearest, strict=True):
        own = words(query)
        if len(own) < 5:
            assert np.isnan(share)
            continue
        shares = [len(own & words(text)) / len(own) for text in among]
        assert share == pytest.approx(max(shares))
        assert shares[row] == pytest.approx(max(shares))


def test_nearest_among_variants_of_one_protein() -> None:
    """Words that most sequences hold are stored by those that lack them."""
    rng = np.random.default_rng(0)
    texts = family(rng, 60, 50, 2)
    found = near.nearest([tokens(text) for text in texts[:40]], [tokens(text) for text in texts[40:]])
    exact = [max(len(words(text) & words(other)) / len(words(text)) for other in texts[:40]) for text in texts[40:]]
    np.testing.assert_allclose(found.share, exact)
    assert found.is_near.all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("part", ["all", "variants"])
def test_groups_are_the_components_of_near_pairs(seed: int, part: str) -> None:
    texts = some_sequences(seed)
    if part == "variants":
        # Most of the set is one family, so that its words are common; some other proteins stand among it.
        rng = np.random.default_rng(seed)
        texts = family(rng, 120, 60, 5) + texts
    sets = [words(text) for text in texts]
    labels = list(range(len(texts)))
    for a in range(len(texts)):
        for b in range(a):
            fewer = min(len(sets[a]), len(sets[b]))
            if fewer >= 5 and len(sets[a] & sets[b]) >= 0.17 * fewer and labels[a] != labels[b]:
                labels = [labels[b] if label == labels[a] else label for label in labels]
    found = near.groups([tokens(text) for text in texts])
    assert same_partition(found.tolist(), labels)


def same_partition(first: list[int], second: list[int]) -> bool:
    return len(set(zip(first, second, strict=True))) == len(set(first)) == len(set(second))


def test_groups_of_too_many_pairs_hang_together_through_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    texts = [text for _ in range(5) for text in family(rng, 60, 80, 3)]
    exact = near.groups([tokens(text) for text in texts])
    monkeypatch.setattr(near, "_MAX_PRODUCTS", 0)
    assert same_partition(near.groups([tokens(text) for text in texts]).tolist(), exact.tolist())


def test_queries_are_sampled_where_the_work_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [tokens(text) for text in some_sequences(0)]
    monkeypatch.setattr(near, "_MAX_PRODUCTS", 2_000)
    found = near.nearest(texts, texts)
    assert 0 < len(found.rows) < len(texts)
    assert found.share[~np.isnan(found.share)].min() == 1


def test_few_and_short_sequences() -> None:
    assert near.groups([tokens("ACD"), tokens("ACD"), tokens("A")]).tolist() in ([0, 1, 2],)
    assert near.groups([]).shape == (0,)
    found = near.nearest([tokens("ACDEFGHIKL")], [tokens("AC"), tokens("ACDEFGHIKL")])
    assert np.isnan(found.share[0])
    assert found.share[1] == 1
