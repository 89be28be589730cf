"""The plan of lanes: documents whole and in order, the same whoever reads it and wherever it is taken up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from protlat.data.batching import Position
from protlat.data.lanes import LanePlan
from protlat.data.pieces import Spans

LENGTHS = np.random.default_rng(0).integers(1, 70, size=23)


def steps(plan: LanePlan, n_steps: int, start: Position = Position()) -> list[list[Spans]]:  # noqa: B008  frozen
    flat = [spans for _, spans in itertools.islice(plan.walk(start), n_steps * plan.n_sets)]
    return [flat[i : i + plan.n_sets] for i in range(0, len(flat), plan.n_sets)]


def same(one: Spans, other: Spans) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(("n_lanes", "piece", "n_sets"), [(1, 16, 1), (3, 16, 1), (3, 7, 2), (4, 200, 2), (40, 5, 1)])
def test_every_lane_reads_whole_documents_without_a_gap(n_lanes: int, piece: int, n_sets: int) -> None:
    plan = LanePlan(LENGTHS, n_lanes, piece, seed=1, n_sets=n_sets)
    n_steps = 3 * int(LENGTHS.sum()) // (n_lanes * piece * n_sets) + 2
    found = steps(plan, n_steps)
    begun: list[int] = []
    for number in range(n_sets):
        held: dict[int, tuple[int, int]] = {}
        for step in found:
            spans = step[number]
            assert spans.carried is not None
            assert spans.last is not None
            assert int(spans.lengths.sum()) == n_lanes * piece
            row = 0
            for lane in range(n_lanes):
                while row <= spans.last[lane]:
                    index, start = int(spans.indices[row]), int(spans.starts[row])
                    # A piece goes on where its lane stands, or begins a document when the one before has ended.
                    assert (index, start) == held[lane] if start else held.get(lane, (0, 0))[1] == 0
                    assert spans.carried[row] == (lane if start else -1)
                    stop = start + int(spans.lengths[row])
                    assert stop <= LENGTHS[index]
                    held[lane] = (index, stop) if stop < LENGTHS[index] else (index, 0)
                    row += 1
            assert row == len(spans.indices)
    for step in found:
        for spans in step:
            begun += spans.indices[spans.starts == 0].tolist()
    # Two epochs have begun, so every document has twice at least, none many times more often than another.
    counts = np.bincount(begun, minlength=len(LENGTHS))
    assert counts.min() >= 2
    assert counts.max() - counts.min() <= 2


def test_ranks_and_a_later_start_see_the_same_plan() -> None:
    plan = LanePlan(LENGTHS, 3, 16, seed=1, n_sets=4)
    whole = steps(plan, 40)
    for world_size in (2, 4):
        for rank in range(world_size):
            mine = [
                spans for _, spans in itertools.islice(plan.walk(Position(), rank, world_size), 40 * 4 // world_size)
            ]
            expected = [step[number] for step in whole for number in range(rank, 4, world_size)]
            assert all(same(a, b) for a, b in zip(mine, expected, strict=True))
    position = plan.advance(Position(), 17 * 4)
    assert position.epoch > 0
    again = steps(LanePlan(LENGTHS, 3, 16, seed=1, n_sets=4), 10, position)
    assert all(same(a, b) for x, y in zip(again, whole[17:27], strict=True) for a, b in zip(x, y, strict=True))
    other = steps(LanePlan(LENGTHS, 3, 16, seed=2, n_sets=4), 40)
    assert not all(same(a[0], b[0]) for a, b in zip(other, whole, strict=True))


def test_an_epoch_is_as_many_batches_as_hold_all_tokens() -> None:
    plan = LanePlan(np.array([100, 50]), n_lanes=2, piece=10, seed=0, n_sets=1)
    assert plan.n_batches(0) == 8
    assert plan.advance(Position(1, 6), 3) == Position(2, 1)
    with pytest.raises(ValueError, match="at least one document"):
        LanePlan(np.zeros(0, dtype=np.int64), 2, 10, 0, 1)
