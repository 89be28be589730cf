"""Rows on disk, and comparisons of rows."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from protlat.evaluation.results import RowResult, best_of, compare, row_key
from protlat.evaluation.scores import score


def row(name: str, noise: float, metric: str = "accuracy", n: int = 200, seed: int = 0) -> RowResult:
    rng = np.random.default_rng(seed)
    if metric == "accuracy":
        truth = np.zeros(n, np.int64)
        found = score(metric, truth, (rng.random(n) < noise).astype(np.int64), n_bootstrap=200)
    else:
        truth = rng.normal(size=n)
        found = score(metric, truth, truth + noise * rng.normal(size=n), n_bootstrap=200)
    return RowResult("toy", name, "key", {"test": {metric: found}}, {"fitting": 1.5}, {"rows": 3})


def test_a_row_survives_its_file(tmp_path: Path) -> None:
    mine = row("probe", 0.2)
    again = RowResult.read(mine.write(tmp_path))
    assert again is not None
    assert (again.key, again.seconds, again.facts) == (mine.key, mine.seconds, mine.facts)
    assert again.scores["test"]["accuracy"] == mine.scores["test"]["accuracy"]
    np.testing.assert_allclose(
        again.scores["test"]["accuracy"].replicates, mine.scores["test"]["accuracy"].replicates, atol=1e-7
    )


def test_undefined_scores_survive_too(tmp_path: Path) -> None:
    flat = score("spearman", np.arange(5.0), np.ones(5), n_bootstrap=3)
    again = RowResult.read(RowResult("toy", "majority", "k", {"test": {"spearman": flat}}).write(tmp_path))
    assert again is not None
    assert np.isnan(again.scores["test"]["spearman"].value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "scores": {"test": 3}}'])
def test_a_damaged_row_is_told_and_computed_again(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "toy" / "probe.json"
    path.parent.mkdir()
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert RowResult.read(path) is None
    assert "it is computed again" in caplog.text
    path.write_text('{"format": 99}')
    assert RowResult.read(path) is None
    assert RowResult.read(tmp_path / "nothing.json") is None


def test_keys_depend_on_every_fact() -> None:
    first = row_key(row="probe", settings={"seed": 0, "layer": -1})
    assert first == row_key(settings={"layer": -1, "seed": 0}, row="probe")
    assert first != row_key(row="probe", settings={"seed": 1, "layer": -1})


def test_the_best_row_and_clear_gains() -> None:
    good, bad = row("probe", 0.1), row("composition", 0.4)
    assert best_of([bad, good], "test", "accuracy") is good
    gain = compare(good, bad, "test", "accuracy")
    assert gain is not None
    assert gain.is_clear
    back = compare(bad, good, "test", "accuracy")
    assert back is not None
    assert not back.is_clear
    assert compare(good, None, "test", "accuracy") is None
    assert compare(good, bad, "other", "accuracy") is None
    # Other proteins cannot be paired.
    assert compare(good, row("composition", 0.4, n=100), "test", "accuracy") is None


def test_lower_is_better_where_it_is() -> None:
    good, bad = row("probe", 0.1, "mse"), row("composition", 1.0, "mse")
    assert best_of([bad, good], "test", "mse") is good
    gain = compare(good, bad, "test", "mse")
    assert gain is not None
    assert gain.gain.value > 0
    assert gain.gain.low < gain.gain.value < gain.gain.high
    assert gain.is_clear
