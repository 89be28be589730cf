import numpy as np

from protlat.tasks.data import LabelledSplit, TaskData


def split(labels: object) -> LabelledSplit:
    ids = (np.array([5, 6, 7], np.uint8), np.array([8], np.uint8), np.array([9, 9], np.uint8))
    return LabelledSplit(("a", "b", "c"), ids, labels)  # type: ignore[arg-type]


def test_rows_are_taken_in_the_order_asked_for() -> None:
    per_sequence = split(np.array([0, 1, 2])).take([2, 0])
    assert per_sequence.names == ("c", "a")
    assert per_sequence.labels.tolist() == [2, 0]  # type: ignore[union-attr]
    per_residue = split((np.array([0, 1, 1]), np.array([1]), np.array([0, -1]))).take([1, 2])
    assert [labels.tolist() for labels in per_residue.labels] == [[1], [0, -1]]  # type: ignore[union-attr]
    assert per_residue.n_residues == 3


def test_fingerprint_depends_on_sequences_and_their_borders_but_not_on_labels() -> None:
    base = split(np.array([0, 1, 2]))
    assert base.fingerprint() == split(np.array([1, 1, 1])).fingerprint()
    assert base.fingerprint() != base.take([1, 0, 2]).fingerprint()
    joined = LabelledSplit(("a", "b"), (np.array([5, 6], np.uint8), np.array([7], np.uint8)), np.zeros(2))
    other = LabelledSplit(("a", "b"), (np.array([5], np.uint8), np.array([6, 7], np.uint8)), np.zeros(2))
    assert joined.fingerprint() != other.fingerprint()


def test_tests_are_all_splits_but_train_and_valid() -> None:
    task = TaskData(
        "t", "sequence_class", ("x", "y"), {n: split(np.zeros(3)) for n in ("train", "valid", "new", "hard")}
    )
    assert task.tests == ("new", "hard")
