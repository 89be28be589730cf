"""Contact maps tile by tile against the whole map; top pairs; archives."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from protlat.inference.contact_files import ContactArchive
from protlat.inference.contacts import ContactPredictor, sigmoid
from protlat.inference.parts import Row
from tests.models.test_contact_head import small_head, vectors


@pytest.mark.parametrize("mixer", ["linear_attention", "convolution"])
@pytest.mark.parametrize("tile", [16, 25, 40])
def test_tiles_give_the_map_of_the_whole(mixer: str, tile: int) -> None:
    head = small_head(mixer)
    given, index = vectors(61, 1).numpy(), np.arange(61) + 7 * (np.arange(61) > 30)
    whole = ContactPredictor(head, tile=61).logits(given, index)
    tiled = ContactPredictor(head, tile=tile).logits(given, index)
    np.testing.assert_allclose(tiled, whole, rtol=1e-5, atol=1e-5)  # logits are stored as float32
    assert np.isfinite(whole).all()


def test_maps_are_symmetric() -> None:
    for tile in (16, 64):
        found = ContactPredictor(small_head(), tile=tile).logits(vectors(50, 2).numpy())
        np.testing.assert_array_equal(found, found.T)


def test_top_pairs_are_the_first_of_the_map() -> None:
    given = vectors(47, 3).numpy()
    predictor = ContactPredictor(small_head(), tile=16)
    found = predictor.top(given, 30, min_separation=8)
    logits = predictor.logits(given)
    pairs = [(i, j) for i in range(47) for j in range(i + 8, 47)]
    expected = sorted(pairs, key=lambda pair: -logits[pair])[:30]
    assert list(zip(found.first.tolist(), found.second.tolist(), strict=True)) == expected
    np.testing.assert_array_equal(found.logit, [logits[pair] for pair in expected])
    everything = predictor.top(given, 10**6, min_separation=8)
    assert len(everything.first) == len(pairs)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_shortest_proteins_have_maps(n: int) -> None:
    found = ContactPredictor(small_head()).logits(vectors(n, 4).numpy())
    assert found.shape == (n, n)
    assert np.isfinite(found).all()


def test_probabilities_do_not_overflow() -> None:
    np.testing.assert_allclose(sigmoid(np.array([-1e4, -2.0, 0.0, 1e4])), [0, 1 / (1 + np.exp(2.0)), 0.5, 1], atol=1e-7)


class _Largest(TorchDispatchMode):
    """Remembers the elements of the largest tensor that any operation gives out."""

    def __init__(self) -> None:
        super().__init__()
        self.n_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for found in tree_leaves(out):
            if isinstance(found, torch.Tensor):
                self.n_elements = max(self.n_elements, found.numel())
        return out


@pytest.mark.parametrize("mixer", ["linear_attention", "convolution"])
def test_no_tensor_grows_with_the_map(mixer: str) -> None:
    """Six times the pixels, and not one tensor is larger: memory is that of a tile."""
    predictor, sizes = ContactPredictor(small_head(mixer), tile=32), []
    for n in (96, 240):
        with _Largest() as largest:
            predictor.top(vectors(n, 1).numpy(), 50)
        sizes.append(largest.n_elements)
    assert sizes[0] == sizes[1]
    # The mode sees what it is there to see.
    with _Largest() as largest:
        ContactPredictor(small_head(mixer), tile=96).logits(vectors(96, 1).numpy())
    assert largest.n_elements > 3 * sizes[0]


def test_archives_open_without_pickle(tmp_path: Path) -> None:
    path = tmp_path / "maps.npz"
    archive = ContactArchive(path)
    row = Row("a/b", "a/b", "a/b some protein", 3, "00")
    archive.add_map(row, np.eye(3, dtype=np.float32))
    archive.add_pairs(
        Row("long", "long", "long", 9, "11"), ContactPredictor(small_head()).top(vectors(9, 1).numpy(), 4)
    )
    archive.close({"model_hash": "abc"})
    with np.load(path, allow_pickle=False) as found:
        assert sorted(found.files) == ["a%2Fb", "pairs/long", "probability/long"]
        np.testing.assert_array_equal(found["a%2Fb"], np.eye(3))
        assert found["pairs/long"].dtype == np.int32
        # Nine residues have six pairs of separation 6 and more.
        assert found["pairs/long"].shape == (4, 2)
        assert found["probability/long"].shape == (4,)
    with zipfile.ZipFile(path) as archive_file:
        assert json.loads(archive_file.comment)["model_hash"] == "abc"


def test_half_precision_vectors_are_read() -> None:
    given = vectors(20, 5).numpy().astype(np.float16)
    found = ContactPredictor(small_head().to(torch.float32)).logits(given)
    assert found.dtype == np.float32
