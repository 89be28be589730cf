"""Examples of all files -> the splits of a task, classes numbered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from protlat.tasks.config import TaskConfig
from protlat.tasks.data import TRAIN, LabelledSplit, Labels
from protlat.tasks.examples import Example
from protlat.tasks.labels import class_order, renumbered


def unique_names(splits: dict[str, list[Example]]) -> int:
    """Give examples whose identifier already stands in the task a new one, ``name#2``; returns how many were renamed."""
    taken: set[str] = set()
    counts: Counter[str] = Counter()
    n_renamed = 0
    for examples in splits.values():
        for example in examples:
            name = example.name
            while name in taken:
                counts[example.name] += 1
                name = f"{example.name}#{counts[example.name] + 1}"
            taken.add(name)
            n_renamed += name != example.name
            example.name = name
    return n_renamed


def classes_of(task: TaskConfig, splits: dict[str, list[Example]], residue_names: Sequence[str]) -> tuple[str, ...]:
    """Names of the classes: those that the task lists, else those of train in order, then those that only others have."""
    if not task.has_classes:
        return ()
    if task.classes:
        return task.classes
    found = {name: names_in(task, examples, residue_names) for name, examples in splits.items()}
    first = found.get(TRAIN, set())
    rest = set().union(*found.values()) - first
    return (*class_order(first), *class_order(rest))


def names_in(task: TaskConfig, examples: Sequence[Example], residue_names: Sequence[str]) -> set[str]:
    """Classes that at least one example shows."""
    if task.type == "sequence_multilabel":
        return {name for example in examples for name in example.label}  # type: ignore[union-attr]  # names, by type
    if task.type == "sequence_class":
        return {example.label for example in examples}  # type: ignore[misc]  # a name, by type
    seen = np.zeros(len(residue_names) + 1, dtype=bool)
    for example in examples:
        assert isinstance(example.label, np.ndarray)
        seen[example.label] = True  # MISSING falls on the last place
    return {name for name, is_seen in zip(residue_names, seen, strict=False) if is_seen}


def split_from(
    task: TaskConfig, examples: Sequence[Example], classes: Sequence[str], residue_names: Sequence[str]
) -> LabelledSplit:
    """One split with labels as arrays."""
    codes = {name: code for code, name in enumerate(classes)}
    labels: Labels
    if task.type == "sequence_class":
        labels = np.asarray([codes[str(example.label)] for example in examples], dtype=np.int64)
    elif task.type == "sequence_multilabel":
        labels = np.zeros((len(examples), len(classes)), dtype=bool)
        for row, example in enumerate(examples):
            labels[row, [codes[name] for name in example.label if name in codes]] = True  # type: ignore[union-attr]  # names, by type
    elif task.type == "sequence_value":
        labels = np.asarray([example.label for example in examples], dtype=np.float32)
    elif task.type == "residue_class":
        order = np.asarray([codes[name] for name in residue_names], dtype=np.int64)
        labels = tuple(renumbered(example.label, order) for example in examples)  # type: ignore[arg-type]  # codes, by type
    else:
        labels = tuple(example.label for example in examples)  # type: ignore[assignment]  # values or coordinates, by type
    return LabelledSplit(
        tuple(example.name for example in examples), tuple(example.ids for example in examples), labels
    )
