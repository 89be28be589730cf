"""Features without a model, and that each finds the signal it is made for and no other."""

from __future__ import annotations

import numpy as np
import pytest

from protlat.alphabet import PROTEIN, STANDARD_RESIDUES
from protlat.evaluation.baselines import (
    composition,
    one_hot_rows,
    plain_features,
    residue_composition,
    residue_window,
    words,
)
from protlat.evaluation.probes import fit_probe
from protlat.evaluation.scores import score
from protlat.tasks.data import LabelledSplit, TaskData


def split_of(sequences: list[str], labels: np.ndarray | tuple[np.ndarray, ...] | None = None) -> LabelledSplit:
    names = tuple(f"p{index}" for index in range(len(sequences)))
    found = np.zeros(len(sequences), np.int64) if labels is None else labels
    return LabelledSplit(names, tuple(PROTEIN.encode(s) for s in sequences), found)


def random_sequence(rng: np.random.Generator, n: int, weights: np.ndarray | None = None) -> str:
    return "".join(rng.choice(list(STANDARD_RESIDUES), n, p=weights))


def test_composition_and_words_by_hand() -> None:
    split = split_of(["AACX", "W"])
    rows = composition(split)
    # X is no residue: it counts in the whole, not in the shares.
    assert rows[0, :2].tolist() == [0.5, 0.25]
    assert rows[0, :20].sum() == 0.75
    np.testing.assert_allclose(rows[:, 20], np.log([4, 1]))
    more = words(split)
    assert more.shape == (2, 21 + 400 + 343)
    pairs = more[0, 21:421].reshape(20, 20) ** 2
    np.testing.assert_allclose([pairs[0, 0], pairs[0, 1], pairs.sum()], [0.5, 0.5, 1.0], atol=1e-6)
    triples = more[0, 421:].reshape(7, 7, 7) ** 2
    # A A C: groups AGV, AGV, C.
    assert triples[0, 0, 6] == pytest.approx(1.0)
    assert more[1, 21:].sum() == 0


def test_residue_features_by_hand() -> None:
    sequence = "ACDEFGHIKLMNPQRSTVWYX"
    split = split_of([sequence, "MK"])
    around = residue_composition(split)
    assert around.rows.shape == (23, 41)
    assert around[0][0, 0] == 1
    # The first residue sees itself and seven to its right.
    np.testing.assert_allclose(around[0][0, 21:29].astype(float), 1 / 8, atol=1e-3)
    np.testing.assert_allclose(around[1][1, 21:].astype(float).sum(), 1.0, atol=1e-3)
    window = residue_window(split)
    assert window.rows.shape == (23, 15 * 22)
    middle = window[0][10].reshape(15, 22)
    assert "".join(STANDARD_RESIDUES[code] for code in middle.argmax(1)) == sequence[3:18]
    ends = window[1][0].reshape(15, 22).argmax(1)
    assert ends[:7].tolist() == [21] * 7
    assert ends[9:].tolist() == [21] * 6
    assert one_hot_rows([PROTEIN.encode("AX")]).rows.argmax(1).tolist() == [0, 20]
    with pytest.raises(ValueError, match="features 'esm' are unknown; known: composition, kmer"):
        plain_features("esm", split, False)


def _probed(kind: str, data: TaskData, metric: str) -> float:
    features = {name: plain_features(kind, split, data.is_per_residue) for name, split in data.splits.items()}
    probe = fit_probe(data, features)
    test = data.splits["test"]
    found = probe.predict(features["test"])
    if data.is_per_residue:
        found = np.split(found, np.cumsum([len(ids) for ids in test.ids])[:-1])  # type: ignore[assignment]
    return score(metric, test.labels, found, n_bootstrap=0).value  # type: ignore[arg-type]


def _sequence_task(kind: str, seed: int) -> TaskData:
    """Class 1 has more lysine, or holds its residues in another order: same composition, other words."""
    rng = np.random.default_rng(seed)
    rich = np.ones(20)
    rich[STANDARD_RESIDUES.index("K")] = 3
    splits = {}
    for name, n in (("train", 300), ("valid", 60), ("test", 200)):
        labels = rng.integers(0, 2, n)
        sequences = []
        for label in labels:
            if kind == "composition":
                sequences.append(random_sequence(rng, 60, rich / rich.sum() if label else None))
            else:
                pairs = list("WC" if label else "CW" for _ in range(6)) + list(random_sequence(rng, 48))
                rng.shuffle(pairs)
                sequences.append("".join(pairs))
        splits[name] = split_of(sequences, labels)
    return TaskData("planted", "sequence_class", ("no", "yes"), splits)


def test_a_signal_in_composition_is_found_by_composition() -> None:
    assert _probed("composition", _sequence_task("composition", 0), "roc_auc") > 0.85


def test_a_signal_in_words_is_found_by_words_only() -> None:
    data = _sequence_task("words", 1)
    assert _probed("kmer", data, "roc_auc") > 0.85
    # 200 proteins without signal: 0.5 within three standard errors of 0.04.
    assert 0.38 < _probed("composition", data, "roc_auc") < 0.62


def test_a_signal_three_residues_away_is_found_by_the_window_only() -> None:
    rng = np.random.default_rng(2)
    splits = {}
    for name, n in (("train", 60), ("valid", 15), ("test", 40)):
        sequences = [random_sequence(rng, 50) for _ in range(n)]
        labels = tuple(
            np.array([int(i >= 3 and s[i - 3] in "DEKR") for i in range(50)], dtype=np.int64) for s in sequences
        )
        splits[name] = split_of(sequences, labels)
    data = TaskData("planted", "residue_class", ("no", "yes"), splits)
    assert _probed("kmer", data, "roc_auc") > 0.97
    assert _probed("composition", data, "roc_auc") < 0.8
