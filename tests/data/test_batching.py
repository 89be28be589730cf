"""Forming batches, dealing them to ranks, reading ahead."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protlat.data.batching import BatchingConfig, BatchPlan, Position, Prefetcher, cut_by_tokens
from protlat.data.packing import batches_by_tokens
from protlat.errors import ConfigError

LENGTHS = np.random.default_rng(0).integers(5, 60, size=101)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(40, 90))
def test_cutting_agrees_with_the_plain_loop(lengths: list[int], budget: int) -> None:
    bounds = cut_by_tokens(np.array(lengths), budget)
    pieces = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
    assert pieces == list(batches_by_tokens(lengths, budget))


def test_an_epoch_holds_every_sequence_once_within_the_budget() -> None:
    plan = BatchPlan(LENGTHS, budget=128, seed=3)
    for epoch in range(3):
        batches = list(plan.once(epoch))
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(LENGTHS)))
        assert max(LENGTHS[b].sum() for b in batches) <= 128
        assert len(batches) == plan.n_batches(epoch)
    assert next(iter(plan.once(0))).tolist() != next(iter(plan.once(1))).tolist()
    again = BatchPlan(LENGTHS, budget=128, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(plan.once(1), again.once(1), strict=True))


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_share_one_list_across_epochs(world_size: int) -> None:
    plan = BatchPlan(LENGTHS, budget=128, seed=0)
    n_steps = 3 * plan.n_batches(0) // world_size
    alone = [(e, b.tolist()) for e, b in itertools.islice(plan.walk(Position()), n_steps * world_size)]
    by_rank = [
        [(e, b.tolist()) for e, b in itertools.islice(plan.walk(Position(), rank, world_size), n_steps)]
        for rank in range(world_size)
    ]
    dealt = [by_rank[k % world_size][k // world_size] for k in range(n_steps * world_size)]
    assert dealt == alone
    # No batch is lost where one epoch ends and the next begins.
    first = [b for e, b in alone if e == 0]
    assert sorted(index for batch in first for index in batch) == list(range(len(LENGTHS)))


def test_a_walk_goes_on_where_it_stopped() -> None:
    plan = BatchPlan(LENGTHS, budget=128, seed=0)
    n_batches = 2 * plan.n_batches(0) + 3
    whole = [(e, b.tolist()) for e, b in itertools.islice(plan.walk(Position()), n_batches + 10)]
    position = Position()
    for _ in range(n_batches):
        position = plan.advance(position, 1)
    assert position == plan.advance(Position(), n_batches)
    rest = [(e, b.tolist()) for e, b in itertools.islice(plan.walk(position), 10)]
    assert rest == whole[n_batches:]


def test_plan_refuses_what_it_cannot_cut() -> None:
    with pytest.raises(ValueError, match="none longer than the budget"):
        BatchPlan(np.array([5, 200]), budget=100, seed=0)
    with pytest.raises(ValueError, match="at least one sequence"):
        BatchPlan(np.array([], dtype=np.int64), budget=100, seed=0)


def test_crop_length_never_exceeds_the_batch() -> None:
    assert BatchingConfig(tokens_per_batch=100).crop_length == 100
    assert BatchingConfig(tokens_per_batch=100, max_length=30).crop_length == 30
    with pytest.raises(ConfigError, match="max_length 300 does not fit a batch of 100 tokens; raise tokens_per_batch"):
        BatchingConfig.parse({"tokens_per_batch": 100, "max_length": 300})


def test_prefetcher_keeps_order_and_ends() -> None:
    with Prefetcher(lambda: iter(range(50)), depth=3) as items:
        assert list(items) == list(range(50))
        assert list(items) == []
    assert items.wait_s >= 0


def test_prefetcher_reads_ahead_but_not_further_than_told() -> None:
    made: list[int] = []

    def count() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            yield number

    with Prefetcher(count, depth=2) as items:
        assert next(items) == 0
        deadline = time.monotonic() + 10
        while len(made) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        # One taken, two waiting, one in the thread's hands.
        assert made == [0, 1, 2, 3]
    assert not any(thread.name == "protlat-prefetch" for thread in threading.enumerate())


def test_prefetcher_hands_errors_to_the_reader() -> None:
    def fail() -> Iterator[int]:
        yield 1
        raise OSError("disk is gone")

    with Prefetcher(fail, depth=2) as items:
        assert next(items) == 1
        with pytest.raises(OSError, match="disk is gone"):
            next(items)
