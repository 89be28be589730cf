"""The part of a task that an evaluation uses, and which rows fit it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from protlat.tasks.data import TRAIN, VALID, LabelledSplit, TaskData
from protlat.tasks.load import LoadedTask

from .evaluate_config import EvaluateConfig
from .evaluate_pairs import PAIR_ROWS
from .evaluate_rows import LABEL_ROWS
from .evaluate_zero_shot import ZERO_SHOT_ROWS


def rows_for(loaded: LoadedTask, wanted: tuple[str, ...]) -> list[str]:
    """The rows of `wanted` that fit a task, and those that always stand beside them."""
    data, task = loaded.data, loaded.config
    if data.type == "pair":
        return [row for row in wanted if row in PAIR_ROWS]
    rows = []
    if TRAIN in data.splits and len(data.splits[TRAIN]):
        rows = [row for row in wanted if row in LABEL_ROWS]
    if task.wild_type and data.type == "sequence_value":
        # The matrix and the scale stand for what a chemist would guess, beside the model's guess.
        rows += [row for row in ZERO_SHOT_ROWS if row in wanted]
    return rows


def sampled(loaded: LoadedTask, config: EvaluateConfig) -> LoadedTask:
    """The task with at most as many residues per split as the settings say."""
    if loaded.data.type == "pair":
        return loaded
    sample = config.sample_of(loaded.config.name)
    limits = {TRAIN: sample.train, VALID: sample.valid}
    splits = {}
    notes = list(loaded.notes)
    for name, split in loaded.data.splits.items():
        rows = sample_rows(split, limits.get(name, sample.test), config.seed)
        splits[name] = split if len(rows) == len(split) else split.take(rows)
        if len(rows) < len(split):
            notes.append(f"{name}: a random {len(rows):,} of {len(split):,} proteins are used (seed {config.seed})")
    return dataclasses.replace(loaded, data=dataclasses.replace(loaded.data, splits=splits), notes=tuple(notes))


def sample_rows(split: LabelledSplit, max_residues: int | None, seed: int) -> list[int]:
    """Random rows, in the order of the split, until they hold `max_residues`; at least one."""
    if max_residues is None or split.n_residues <= max_residues:
        return list(range(len(split)))
    order = np.random.default_rng(seed).permutation(len(split))
    lengths = np.array([len(split.ids[row]) for row in order])
    n_rows = max(int(np.searchsorted(np.cumsum(lengths), max_residues, side="right")), 1)
    return sorted(int(row) for row in order[:n_rows])


def split_facts(data: TaskData) -> dict[str, dict[str, Any]]:
    """Sizes, and counts of classes or the range of values, by split."""
    facts: dict[str, dict[str, Any]] = {}
    for split_name, split in data.splits.items():
        facts[split_name] = {"proteins": len(split), "residues": split.n_residues}
        if data.classes and data.type != "pair":
            labels = (
                split.labels
                if isinstance(split.labels, np.ndarray)
                else np.concatenate([np.asarray(x) for x in split.labels])
            )
            counts = (
                labels.sum(0) if labels.ndim == 2 else np.bincount(labels[labels >= 0], minlength=len(data.classes))
            )
            facts[split_name]["classes"] = [int(count) for count in counts]
        elif data.type.endswith("value"):
            labels = (
                np.asarray(split.labels)
                if isinstance(split.labels, np.ndarray)
                else np.concatenate([np.asarray(x) for x in split.labels])
            )
            known = labels[np.isfinite(labels)]
            if len(known):
                facts[split_name] |= {
                    "mean": float(known.mean()),
                    "low": float(known.min()),
                    "high": float(known.max()),
                }
    return facts
