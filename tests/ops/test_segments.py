"""Where each sequence lies in a packed batch, against plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protlat.ops.segments import Segments, pack, rounded_size, unpack

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def owner(lengths: list[int]) -> list[tuple[int, int]]:
    """(sequence, position) of every packed token."""
    return [(s, i) for s, n in enumerate(lengths) for i in range(n)]


@settings(deadline=None, max_examples=60)
@given(LENGTHS)
def test_positions_ids_and_runs(lengths: list[int]) -> None:
    segments = Segments(lengths)
    assert segments.ids.tolist() == [s for s, _ in owner(lengths)]
    assert segments.positions.tolist() == [i for _, i in owner(lengths)]
    assert segments.cu_seqlens.tolist() == [sum(lengths[:s]) for s in range(len(lengths) + 1)]
    assert [n for count, n in segments.runs for _ in range(count)] == lengths


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.integers(1, 17))
def test_chunks_hold_every_token_once(lengths: list[int], size: int) -> None:
    table = Segments(lengths).chunks(size)
    who = owner(lengths)
    rows = [
        [int(i) for i, ok in zip(row, good, strict=True) if ok]
        for row, good in zip(table.rows, table.valid, strict=True)
    ]
    assert sorted(i for row in rows for i in row) == list(range(len(who)))
    for row, segment in zip(rows, table.segment.tolist(), strict=True):
        assert {who[i][0] for i in row} == {segment}
    # Rows that are not tokens repeat tokens of their own sequence, never of another.
    assert torch.equal(Segments(lengths).ids[table.rows], table.segment[:, None].expand_as(table.rows))
    assert table.rows.flatten()[table.inverse].tolist() == list(range(len(who)))


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.sampled_from([1, 8, 64]))
def test_rounded_rows_hold_every_token_once(lengths: list[int], multiple: int) -> None:
    segments = Segments(lengths)
    table = segments.rounded(multiple)
    assert table.rows[table.inverse].tolist() == list(range(sum(lengths)))
    assert sorted([*table.inverse.tolist(), *table.added.tolist()]) == list(range(sum(table.lengths)))
    assert all(new >= old and new % multiple == 0 for new, old in zip(table.lengths, lengths, strict=True))
    owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(table.lengths))
    assert torch.equal(segments.ids[table.rows], owners)


@given(st.integers(1, 2_000_000))
def test_rounded_sizes_are_few_and_near(n: int) -> None:
    assert n <= rounded_size(n) <= n * 33 / 32
    assert rounded_size(rounded_size(n)) == rounded_size(n)


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.integers(1, 9))
def test_window_mask_sees_neighbours_of_the_same_sequence(lengths: list[int], radius: int) -> None:
    segments, who = Segments(lengths), owner(lengths)
    n_blocks = -(-len(who) // radius)
    first, last = 0, n_blocks
    mask = segments.window_mask(radius, radius, slice(first, last), torch.float32).expand(last - first, -1, -1, -1)
    for i in range(len(who)):
        row = mask[i // radius, 0, i % radius]
        for k in range(3 * radius):
            j = (i // radius - 1) * radius + k
            seen = 0 <= j < len(who) and abs(i - j) <= radius and who[i][0] == who[j][0]
            assert (row[k] == 0) == seen


def test_band_of_a_long_sequence_equals_its_full_mask() -> None:
    segments = Segments([3, 100, 7])
    inner = slice(3, 8)
    band = segments.window_mask(8, 8, inner, torch.float32)
    assert band.shape[0] == 1
    assert torch.equal(band.expand(5, -1, -1, -1), segments._window_slab(8, 8, 3, 8, torch.float32))


def test_near_borders() -> None:
    assert Segments([5, 1, 4]).near_borders(1).tolist() == [0, 4, 5, 6, 9]
    assert Segments([5, 1, 4]).near_borders(2).tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9]


def test_padded_round_trip(rng: torch.Generator) -> None:
    mask = torch.arange(6)[None] < torch.tensor([[6], [1], [4]])
    x = torch.randn(3, 6, 2, generator=rng)
    packed = pack(x, mask)
    assert packed.shape == (11, 2)
    assert Segments.from_mask(mask).lengths == (6, 1, 4)
    back = unpack(packed, mask)
    assert torch.equal(back[mask], x[mask])
    assert back[~mask].abs().sum() == 0


def test_padding_inside_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="padding must follow"):
        Segments.from_mask(torch.tensor([[True, False, True]]))


def test_empty_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Segments([3, 0])
    with pytest.raises(ValueError, match="at least one sequence"):
        Segments([])


def test_tables_made_in_inference_mode_serve_a_backward_pass() -> None:
    segments = Segments([3, 2])
    with torch.inference_mode():
        ids = segments.ids
        mask = segments.window_mask(2, 2, slice(0, 3), torch.float32)
    assert not ids.is_inference()
    x = torch.randn(2, 3, requires_grad=True)
    (x[ids].square().sum() + (mask.exp() * x.sum()).sum()).backward()
    assert x.grad is not None
