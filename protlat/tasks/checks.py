"""What is wrong or odd in a task's data: errors where training or scoring would make no sense, else warnings with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from protlat.errors import SequenceError
from protlat.tasks.config import TaskConfig
from protlat.tasks.data import MISSING, TRAIN, VALID, LabelledSplit, TaskData
from protlat.tasks.examples import Example
from protlat.tasks.near import Nearest, nearest

_SHOWN = 5
_LEVELS = (0.7, 0.8, 0.9, 0.99)


def check_labels(task: TaskConfig, data: TaskData) -> list[str]:
    """Warnings about labels.

    Raises
    ------
    SequenceError
        No training examples, training labels of one class or one value, or a split without any label.
    """
    if TRAIN not in data.splits and not task.zero_shot:
        raise SequenceError(f"{task.name}: no training examples; splits found: {', '.join(data.splits) or 'none'}")
    warnings: list[str] = []
    for name, split in data.splits.items():
        if not len(split):
            raise SequenceError(f"{task.name}: no {'training ' if name == TRAIN else ''}examples in split {name!r}")
        if task.type == "pair":
            continue
        counts = class_counts(task, data, split) if task.has_classes else value_counts(split)
        if not counts:
            raise SequenceError(f"{task.name}: split {name!r} has {len(split):,} examples, but no label that counts")
        if len(counts) == 1 and task.type != "sequence_multilabel":
            only = next(iter(counts))
            kind = "class" if task.has_classes else "value"
            if name == TRAIN:
                raise SequenceError(
                    f"{task.name}: all {sum(counts.values()):,} training labels are {only!r}: one {kind} only, nothing to learn"
                )
            warnings.append(f"{name}: all labels are {only!r}; most scores are undefined there")
        empty = _n_without_label(task, split)
        if empty:
            warnings.append(f"{name}: {empty:,} of {len(split):,} proteins have no label that counts")
    if task.has_classes and TRAIN in data.splits:
        warnings += _unshown(task, data)
    return warnings


def class_counts(task: TaskConfig, data: TaskData, split: LabelledSplit) -> dict[str, int]:
    """Labels of each class that occurs in a split, in the order of the classes."""
    if task.type == "sequence_multilabel":
        assert isinstance(split.labels, np.ndarray)
        numbers = split.labels.sum(axis=0)
    else:
        flat = _flat(split)
        numbers = np.bincount(flat[flat != MISSING], minlength=len(data.classes))
    return {name: int(n) for name, n in zip(data.classes, numbers, strict=True) if n}


def value_counts(split: LabelledSplit) -> dict[float, int]:
    """How often each value occurs in a split."""
    flat = _flat(split)
    values, counts = np.unique(flat[~np.isnan(flat)], return_counts=True)
    return {float(value): int(count) for value, count in zip(values, counts, strict=True)}


def _flat(split: LabelledSplit) -> np.ndarray:
    if isinstance(split.labels, np.ndarray):
        return split.labels
    return np.concatenate([np.asarray(labels) for labels in split.labels])


def _n_without_label(task: TaskConfig, split: LabelledSplit) -> int:
    if not task.is_per_residue:
        return 0
    arrays = [labels for labels in split.labels if isinstance(labels, np.ndarray)]
    if task.type == "residue_value":
        return sum(bool(np.isnan(labels).all()) for labels in arrays)
    return sum(bool((labels == MISSING).all()) for labels in arrays)


def _unshown(task: TaskConfig, data: TaskData) -> list[str]:
    """Classes that train does not show, and those of them that other splits have."""
    shown = class_counts(task, data, data.splits[TRAIN])
    absent = [name for name in data.classes if name not in shown]
    warnings = []
    if task.classes and absent:
        warnings.append(f"train shows no example of {listed(absent)}")
    for name, split in data.splits.items():
        if name == TRAIN:
            continue
        counts = class_counts(task, data, split)
        unseen = [label for label in absent if label in counts]
        if unseen:
            n_labels = sum(counts[label] for label in unseen)
            warnings.append(
                f"{name}: {len(unseen):,} classes with {n_labels:,} of {sum(counts.values()):,} labels are not in train and cannot "
                f"be predicted: {listed(unseen)}"
            )
    return warnings


def listed(names: Sequence[str]) -> str:
    """The first few of some names."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def resolve_overlap(task: TaskConfig, splits: dict[str, list[Example]]) -> tuple[dict[str, list[Example]], list[str]]:
    """Treat sequences that stand both in train or valid and in a test, as the task says.

    Returns
    -------
    splits : dict
    warnings : list of str

    Raises
    ------
    SequenceError
        There are some and the task says ``error``; names the first with both places.
    """
    learnt = [name for name in (TRAIN, VALID) if name in splits]
    tests = [name for name in splits if name not in learnt]
    where: dict[bytes, Example] = {}
    for name in learnt:
        for example in splits[name]:
            where.setdefault(example.ids.tobytes(), example)
    warnings: list[str] = []
    drop: set[bytes] = set()
    for name in tests:
        both = [example for example in splits[name] if example.ids.tobytes() in where]
        if not both:
            continue
        first = both[0]
        other = where[first.ids.tobytes()]
        place = f"the first: {first.name} ({first.where}) and {other.name} ({other.where})"
        count = f"{name}: {len(both):,} of {len(splits[name]):,} sequences are also in train or valid"
        if task.overlap == "error":
            raise SequenceError(f"{task.name}: {count}; {place}; overlap: drop_train or drop_test leaves them out")
        drop |= {example.ids.tobytes() for example in both}
        action = {"warn": "", "drop_train": "; left out there", "drop_test": "; left out here"}[task.overlap]
        warnings.append(f"{count}{action}; {place}")
    wanted = {"warn": [], "drop_train": learnt, "drop_test": tests}[task.overlap] if drop else []
    for name in wanted:
        splits[name] = [example for example in splits[name] if example.ids.tobytes() not in drop]
    return splits, warnings


def check_repeats(task: TaskConfig, splits: dict[str, list[Example]]) -> list[str]:
    """Warnings about sequences that stand more than once in a split, or both in train and in valid."""
    warnings = []
    for name, examples in splits.items():
        counts = Counter(example.ids.tobytes() for example in examples)
        n_repeats = len(examples) - len(counts)
        if n_repeats:
            n_torn = _n_contradictory(task, examples) if task.type != "pair" else 0
            torn = f", {n_torn:,} sequences with labels that differ" if n_torn else ""
            warnings.append(f"{name}: {n_repeats:,} of {len(examples):,} examples repeat a sequence of the split{torn}")
    if TRAIN in splits and VALID in splits:
        train = {example.ids.tobytes() for example in splits[TRAIN]}
        n_both = sum(example.ids.tobytes() in train for example in splits[VALID])
        if n_both:
            warnings.append(f"valid: {n_both:,} of {len(splits[VALID]):,} sequences are also in train")
    return warnings


def _n_contradictory(task: TaskConfig, examples: Sequence[Example]) -> int:
    labels: dict[bytes, set[object]] = {}
    for example in examples:
        label = example.label
        labels.setdefault(example.ids.tobytes(), set()).add(label.tobytes() if isinstance(label, np.ndarray) else label)
    return sum(len(different) > 1 for different in labels.values())


def check_neighbours(task: TaskConfig, data: TaskData) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """How near valid and the tests are to train.

    Returns
    -------
    report : dict
        For each split ``n_compared``, ``n_near``, ``share_near``, ``n_too_short`` and ``nearest_identity_histogram``.
    warnings : list of str
        One line for each split that has near neighbours in train; none for variants of a wild type.
    """
    report: dict[str, dict[str, Any]] = {}
    warnings: list[str] = []
    if TRAIN not in data.splits:
        return report, warnings
    train = data.splits[TRAIN]
    for name, split in data.splits.items():
        if name == TRAIN:
            continue
        found = nearest(train.ids, split.ids)
        report[name] = facts = _facts(found, len(split))
        # Variants of one protein are near each other by intent.
        if facts["n_near"] and not task.wild_type:
            best = int(np.nanargmax(found.share))
            pair = f"{split.names[found.rows[best]]} and {train.names[found.nearest[best]]}"
            warnings.append(
                f"{name}: {facts['n_near']:,} of {facts['n_compared']:,} sequences have a near neighbour in train (about 70 % "
                f"identity or more, by shared words); the nearest: {pair}"
            )
    return report, warnings


def _facts(found: Nearest, n_sequences: int) -> dict[str, Any]:
    enough = ~np.isnan(found.share)
    identity = found.identity[enough]
    counts = np.bincount(np.searchsorted(_LEVELS, identity, side="right"), minlength=len(_LEVELS) + 1).tolist()
    names = ("below 70 %", "70 to 80 %", "80 to 90 %", "90 to 99 %", "99 % and more")
    n_near = int(np.count_nonzero(found.is_near))
    return {
        "n_sequences": n_sequences,
        "n_compared": len(identity),
        "n_too_short": int(np.count_nonzero(~enough)),
        "n_near": n_near,
        "share_near": round(n_near / len(identity), 4) if len(identity) else None,
        "nearest_identity_histogram": [[name, count] for name, count in zip(names, counts, strict=True)],
    }
