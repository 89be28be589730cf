"""Cached features: the embedder's vectors, computed once, whole after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protlat.errors import OutputError
from protlat.inference import feature_cache
from protlat.inference.feature_cache import FeatureCache, Ragged, default_cache, gather, statistics
from protlat.inference.naming import Column
from protlat.inference.vectors import Embedder
from protlat.models import Encoder
from protlat.tasks.data import LabelledSplit


def some_split(n: int = 30, seed: int = 0) -> LabelledSplit:
    rng = np.random.default_rng(seed)
    ids = tuple(rng.integers(4, 24, int(rng.integers(1, 40))).astype(np.uint8) for _ in range(n))
    return LabelledSplit(tuple(f"s{i}" for i in range(n)), ids, np.zeros(n, np.int64))


def cache(folder: Path, model: Path, **settings: Any) -> FeatureCache:
    return FeatureCache(folder, model, "float32", "cpu", **{"toks_per_batch": 64, **settings})


def test_vectors_are_those_of_the_embedder(model_folder: Path, tmp_path: Path) -> None:
    split, store = some_split(), cache(tmp_path, model_folder)
    rows, means = store.residues(split), store.means(split)
    assert rows.rows.dtype == np.float16
    assert isinstance(rows.rows, np.memmap)
    assert store.n_computed == split.n_residues
    encoder = Encoder.from_pretrained(model_folder)
    columns = [Column("mean", 2), Column("per_tok", 2)]
    for index, found in Embedder(encoder, columns, 10_000).run(split.ids, split.names):
        np.testing.assert_allclose(rows[index], found[columns[1]], rtol=2e-3, atol=2e-3)  # float16
        np.testing.assert_allclose(means[index], found[columns[0]], rtol=1e-4, atol=1e-5)


def test_nothing_is_computed_twice(model_folder: Path, tmp_path: Path) -> None:
    split = some_split()
    first = cache(tmp_path, model_folder)
    wanted = np.asarray(first.residues(split).rows)
    again = cache(tmp_path, model_folder)
    np.testing.assert_array_equal(again.residues(split).rows, wanted)
    again.means(split)
    assert again.n_computed == 0
    assert cache(tmp_path, model_folder, layer=2)._path(split, "means") == again._path(split, "means")
    assert cache(tmp_path, model_folder, layer=1)._path(split, "means") != again._path(split, "means")
    assert again._path(some_split(seed=1), "means") != again._path(split, "means")
    assert again._path(some_split().take([1, 0]), "means") != again._path(some_split().take([0, 1]), "means")


def test_another_model_has_entries_of_its_own(model_folder: Path, tmp_path: Path) -> None:
    import torch

    from protlat.models import MaskedLM, ModelConfig, read_model_config

    torch.manual_seed(8)
    other = tmp_path / "other"
    MaskedLM(ModelConfig(d_model=16, n_layers=2, head_dim=8), read_model_config(model_folder)[1]).save_pretrained(other)
    split = some_split(5)
    one, two = cache(tmp_path / "c", model_folder), cache(tmp_path / "c", other)
    assert np.abs(one.means(split) - two.means(split)).max() > 0.01


@pytest.mark.parametrize("kind", ["residues", "means"])
def test_a_kill_loses_one_part_at_most(
    kind: str, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache, "_BATCHES_PER_PART", 2)
    split = some_split(60)
    whole = getattr(cache(tmp_path / "whole", model_folder), kind)(split)

    class Killed(BaseException):
        pass

    real, calls = Embedder.run, 0

    def run(self: Embedder, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        for number, item in enumerate(real(self, *args)):
            if calls == 4 and number == 1:
                raise Killed
            yield item

    monkeypatch.setattr(Embedder, "run", run)
    with pytest.raises(Killed):
        getattr(cache(tmp_path / "killed", model_folder), kind)(split)
    monkeypatch.setattr(Embedder, "run", real)
    rest = cache(tmp_path / "killed", model_folder)
    found = getattr(rest, kind)(split)
    assert 0 < rest.n_computed < split.n_residues
    if isinstance(found, Ragged):
        np.testing.assert_array_equal(found.rows, whole.rows)
    else:
        np.testing.assert_array_equal(found, whole)
    assert not list((tmp_path / "killed").glob("partial-*"))


def test_faults_of_the_disk_are_one_line(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OutputError, match=r"the features cannot be kept: .*name another folder with --cache"):
        cache(file / "inner", model_folder).means(some_split(2))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 10))  # type: ignore[attr-defined]
    with pytest.raises(OutputError, match=r"feature cache \(--cache\) needs about"):
        cache(tmp_path / "c", model_folder).means(some_split(2))


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROTLAT_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("PROTLAT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache() == Path("/x/protlat/features")


def test_statistics_and_gather() -> None:
    rows = np.arange(12, dtype=np.float16).reshape(6, 2)
    ragged = Ragged(rows, np.array([0, 1, 4, 6]))
    mean, spread = statistics(ragged)
    np.testing.assert_allclose(mean, rows.mean(0))
    np.testing.assert_allclose(spread, rows.astype(float).std(0), rtol=1e-6)
    found, lengths = gather(ragged, [2, 0])
    assert lengths == [2, 1]
    np.testing.assert_array_equal(found, rows[[4, 5, 0]])
    assert gather(rows, [1, 3])[1] == [1, 1]
