"""Crops of maps: their labels, their places, their independence of order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protlat.data.batching import Position
from protlat.inference.feature_cache import Ragged
from protlat.tasks.data import LabelledSplit, PairTarget
from protlat.training.pair_data import UNKNOWN, PairDataset, PairLoss, PairPlan, one_hot

EDGES = (6.0, 8.0, 12.0)


def chains(lengths: tuple[int, ...], seed: int = 0) -> LabelledSplit:
    """Random walks in a box; two residues of the first chain are not known, and one chain has a gap."""
    rng = np.random.default_rng(seed)
    ids = tuple(rng.integers(4, 24, n).astype(np.uint8) for n in lengths)
    labels = []
    for number, n in enumerate(lengths):
        xyz = (np.cumsum(rng.normal(size=(n, 3)) * 3, axis=0) % 20).astype(np.float32)
        if number == 0:
            xyz[3:5] = np.nan
        labels.append(PairTarget(xyz, np.arange(n) + 9 * (np.arange(n) > n // 2)))
    return LabelledSplit(tuple(f"c{n}" for n in range(len(lengths))), ids, tuple(labels))


def dataset(split: LabelledSplit, crop: int = 16, n_crops: int = 3) -> PairDataset:
    rng = np.random.default_rng(5)
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in split.ids])])
    features = Ragged(rng.normal(size=(int(offsets[-1]), 7)).astype(np.float16), offsets)
    return PairDataset(split, features, EDGES, crop, n_crops, seed=2)


def test_labels_of_crops_follow_the_definition() -> None:
    split = chains((40, 25))
    batch = dataset(split).batch(np.array([[0, 0], [1, 0]]))
    tiles, seen = batch.segments.tiles, 0
    starts = [0, 40]
    for tile in range(len(tiles.rows)):
        target = split.labels[int(tiles.chains[tile])]
        assert isinstance(target, PairTarget)
        for a, row in enumerate(tiles.rows[tile].tolist()):
            for b, column in enumerate(tiles.columns[tile].tolist()):
                label = int(batch.labels[tile, a, b])
                i, j = row - starts[int(tiles.chains[tile])], column - starts[int(tiles.chains[tile])]
                distance = np.sqrt(((target.xyz[i].astype(np.float64) - target.xyz[j]) ** 2).sum())
                if np.isnan(distance) or target.index[j] - target.index[i] < 6:
                    assert label == UNKNOWN
                else:
                    assert label == sum(distance >= edge for edge in EDGES)
                    seen += 1
    assert seen > 500


def test_short_chains_are_filled_up_with_what_does_not_count() -> None:
    batch = dataset(chains((10, 30))).batch(np.array([[0, 0], [1, 0]]))
    tiles = batch.segments.tiles
    assert tiles.rows[0].tolist() == [*range(10), *[-1] * 6]
    assert (batch.labels[0, 10:] == UNKNOWN).all()
    assert (batch.labels[0, :, 10:] == UNKNOWN).all()
    assert tiles.rows[1:].min() >= 10
    assert tiles.mask[0].sum() == 55


def test_crops_lie_in_the_upper_half_and_reach_far_from_the_diagonal() -> None:
    data = dataset(chains((200, 20)), crop=16, n_crops=4)
    places = [place for epoch in range(50) for place in data.places(200, 0, epoch)]
    assert all(0 <= first <= second <= 184 for first, second in places)
    far = [second - first for first, second in places]
    # Two even draws from 0 to 184 differ by a third of that on average.
    assert abs(np.mean(far) - 61) < 12
    assert max(far) > 140
    assert min(first for first, _ in places) < 5
    assert max(second for _, second in places) > 179


def test_crops_depend_on_chain_and_epoch_alone() -> None:
    data = dataset(chains((60, 70, 80)))
    alone = data.batch(np.array([[1, 3]]))
    beside = data.batch(np.array([[2, 3], [1, 3]]))
    rows = beside.segments.tiles.chains == 1
    torch.testing.assert_close(beside.segments.tiles.rows[rows] - 80, alone.segments.tiles.rows)
    torch.testing.assert_close(beside.labels[rows], alone.labels)
    assert data.places(70, 1, 3) != data.places(70, 1, 4)


def test_the_plan_hands_on_the_epoch() -> None:
    plan = PairPlan(np.ones(5, np.int64), 2, seed=1)
    walk = plan.walk(Position())
    rows = [next(walk)[1] for _ in range(6)]
    assert np.concatenate(rows[:3])[:, 0].tolist() != sorted(np.concatenate(rows[:3])[:, 0])
    assert sorted(np.concatenate(rows[:3])[:, 0]) == [0, 1, 2, 3, 4]
    assert {int(epoch) for epoch in np.concatenate(rows[3:])[:, 1]} == {1}


def test_the_loss_is_the_cross_entropy_of_known_pixels(rng: torch.Generator) -> None:
    logits = torch.randn(2, 4, 3, 3, generator=rng)
    labels = torch.randint(-1, 4, (2, 3, 3), generator=rng)
    loss, expected = PairLoss(), 0.0
    for b, i, j in np.ndindex(2, 3, 3):
        if labels[b, i, j] >= 0:
            expected -= float(logits[b, :, i, j].double().log_softmax(0)[labels[b, i, j]])
    assert loss(logits, labels).item() == pytest.approx(expected, rel=1e-5)
    assert loss.amount(labels) == int((labels >= 0).sum())


def test_one_hot_tells_residues_apart() -> None:
    found = one_hot(np.array([4, 7, 4]))
    assert found.shape == (3, 33)
    assert found.sum() == 3
    assert (found[0] == found[2]).all()
    assert found[0] @ found[1] == 0
