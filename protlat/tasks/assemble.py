"""Examples of all files -> the splits of a task, classes numbered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from protlat.errors import SequenceError
from protlat.tasks.config import TaskConfig
from protlat.tasks.data import MISSING, TRAIN, LabelledSplit, Labels
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


def classes_of(
    task: TaskConfig, splits: dict[str, list[Example]], residue_names: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Names of the classes: those that the task lists, else those of train, sorted, then those that only others have.

    Examples of classes that train does not show are removed from `splits` where the task says ``unseen: skip``.

    Returns
    -------
    classes : tuple of str
    warnings : list of str

    Raises
    ------
    SequenceError
        A class occurs outside train only, and the task says ``unseen: error``; names the first such record.
    """
    if not task.has_classes:
        return (), []
    if task.classes:
        return task.classes, []
    known = names_in(task, splits.get(TRAIN, []), residue_names)
    rest: set[str] = set()
    warnings: list[str] = []
    for name, examples in splits.items():
        unseen = names_in(task, examples, residue_names) - known if name != TRAIN else set()
        if not unseen:
            continue
        if task.unseen == "error":
            first = next(one for one in examples if names_in(task, [one], residue_names) & unseen)
            raise SequenceError(
                f"{first.where}: {first.name}: {name} has the class {class_order(unseen)[0]!r}, which train never shows "
                f"({len(unseen)} such classes); unseen: keep counts them as missed, unseen: skip leaves them out"
            )
        if task.unseen == "skip":
            splits[name], n_gone = _without(task, examples, unseen, residue_names)
            unit = "residues" if task.is_per_residue else "examples"
            warnings.append(f"{name}: {n_gone:,} {unit} of {len(unseen):,} classes that train never shows left out")
        else:
            rest |= unseen
    return (*class_order(known), *class_order(rest)), warnings


def _without(
    task: TaskConfig, examples: list[Example], names: set[str], residue_names: Sequence[str]
) -> tuple[list[Example], int]:
    """Examples without labels of some classes, and how many examples (residues) these were."""
    if task.is_per_residue:
        codes = np.asarray([code for code, name in enumerate(residue_names) if name in names])
        n_gone = 0
        for example in examples:
            assert isinstance(example.label, np.ndarray)
            hidden = np.isin(example.label, codes)
            n_gone += int(hidden.sum())
            example.label = np.where(hidden, MISSING, example.label)
        return examples, n_gone
    if task.type == "sequence_multilabel":
        for example in examples:
            example.label = tuple(name for name in example.label if name not in names)  # type: ignore[union-attr]  # names, by type
        kept = [example for example in examples if example.label]
    else:
        kept = [example for example in examples if example.label not in names]
    return kept, len(examples) - len(kept)


def drop_rare(task: TaskConfig, splits: dict[str, list[Example]]) -> list[str]:
    """Multi-label: leave classes with fewer than `min_count` train examples out of train; returns warnings."""
    if task.type != "sequence_multilabel" or task.min_count == 1 or TRAIN not in splits:
        return []
    counts = Counter(name for example in splits[TRAIN] for name in example.label)  # type: ignore[union-attr]  # names, by type
    rare = {name for name, count in counts.items() if count < task.min_count}
    if not rare:
        return []
    splits[TRAIN], n_gone = _without(task, splits[TRAIN], rare, ())
    return [
        f"train: {len(rare):,} classes with fewer than {task.min_count} examples left out, and {n_gone:,} examples that had no other"
    ]


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
            labels[row, [codes[name] for name in example.label]] = True  # type: ignore[union-attr]  # names, by type
    elif task.type == "sequence_value":
        labels = np.asarray([example.label for example in examples], dtype=np.float32)
    elif task.type == "residue_class":
        # Names that only residues left out had are in no class.
        order = np.asarray([codes.get(name, MISSING) for name in residue_names], dtype=np.int64)
        labels = tuple(renumbered(example.label, order) for example in examples)  # type: ignore[arg-type]  # codes, by type
    else:
        labels = tuple(example.label for example in examples)  # type: ignore[assignment]  # values or coordinates, by type
    return LabelledSplit(
        tuple(example.name for example in examples), tuple(example.ids for example in examples), labels
    )
