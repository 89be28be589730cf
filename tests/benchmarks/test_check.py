"""The regression guard: what counts as a fall."""

from benchmarks.check import compare


def test_only_a_fall_of_more_than_a_fifth_fails() -> None:
    rows, fallen = compare({"a": 0.79, "b": 0.81, "c": 2.0}, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert fallen == ["a"]
    assert [row[-1] for row in rows] == ["FELL", "ok", "ok"]


def test_a_ratio_that_was_never_stored_is_shown_and_passes() -> None:
    rows, fallen = compare({"new": 0.1}, {"old": 5.0})
    assert rows == [("new", "0.10", "-", "new")]
    assert not fallen
