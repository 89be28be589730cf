"""Contact maps tile by tile against the whole map; top pairs; archives."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

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


def test_memory_of_tiles_does_not_grow_with_the_chain() -> None:
    """Peak above the start for 2.7 times the residues, 7 times the pixels, in processes of their own."""
    code = (
        "import sys, numpy as np, torch\n"
        "torch.set_num_threads(1)\n"
        "from tests.models.test_contact_head import small_head, vectors\n"
        "from protlat.inference.contacts import ContactPredictor\n"
        "from protlat.reporting import current_memory_bytes, peak_memory_bytes\n"
        "predictor = ContactPredictor(small_head().float(), tile=64)\n"
        "predictor.top(vectors(70, 1).float().numpy(), 50)\n"
        "start = current_memory_bytes()\n"
        "predictor.top(vectors(int(sys.argv[1]), 1).float().numpy(), 50)\n"
        "print(peak_memory_bytes() - start)\n"
    )
    root = Path(__file__).parents[2]
    short, long = (
        int(
            subprocess.run([sys.executable, "-c", code, n], cwd=root, capture_output=True, text=True, check=True).stdout
        )
        for n in ("192", "512")
    )
    # One map of 512 x 512 pixels with 12 channels in float32 is 12.6 MB, and a block holds several.
    assert long - short < 8_000_000


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
