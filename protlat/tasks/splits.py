"""Splits that the files do not bring: cut from train along groups of near sequences, or parts of a cross-validation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from protlat.errors import SequenceError
from protlat.tasks.config import CutConfig, TaskConfig
from protlat.tasks.data import TRAIN, VALID
from protlat.tasks.examples import Example
from protlat.tasks.near import groups

TEST = "test"
# One group above this share of train: the sequences are variants of one protein.
_VARIANTS = 0.5
# A group that would overfill a cut by more than this share of it is left in train.
_SLACK = 0.1
Splits = dict[str, list[Example]]


def arrange(task: TaskConfig, splits: Splits) -> tuple[Splits, list[str]]:
    """Bring the splits of the files into train, valid and tests, as the task's settings say.

    Parameters
    ----------
    task : TaskConfig
    splits : dict of str to list of Example
        As the files name them; "" for examples whose file names none, which are train.

    Returns
    -------
    splits : dict
        ``train``, then ``valid`` where there is one, then the tests.
    notes : list of str
        How splits were cut, one line each.

    Raises
    ------
    SequenceError
        A part of the cross-validation is missing, or train cannot be cut.
    """
    if "" in splits:
        _refuse_mixed(splits)
        splits = {TRAIN if name == "" else name: examples for name, examples in splits.items()}
    notes: list[str] = []
    cutter = _Cutter(notes)
    if task.cross_validation is not None:
        splits = _fold(task, splits, cutter, notes)
    if task.test is not None and not [name for name in splits if name not in (TRAIN, VALID)]:
        splits[TRAIN], splits[TEST] = cutter.cut(splits.get(TRAIN, []), task.test, TEST)
    if task.valid is not None and not task.zero_shot and VALID not in splits and splits.get(TRAIN):
        splits[TRAIN], splits[VALID] = cutter.cut(splits[TRAIN], task.valid, VALID)
    first = [name for name in (TRAIN, VALID) if name in splits]
    return {name: splits[name] for name in (*first, *(name for name in splits if name not in first))}, notes


def _refuse_mixed(splits: Splits) -> None:
    """Some records of the files name a split and others do not: which one is meant cannot be known."""
    named = [examples for name, examples in splits.items() if name]
    files_with = {example.where.rpartition(":")[0] for examples in named for example in examples}
    for example in splits[""]:
        if example.where.rpartition(":")[0] in files_with:
            raise SequenceError(
                f"{example.where}: {example.name}: names no split (SET=train, valid or test), but other records of the file do"
            )


def _fold(task: TaskConfig, splits: Splits, cutter: _Cutter, notes: list[str]) -> Splits:
    assert task.cross_validation is not None
    settings = task.cross_validation
    names = settings.parts
    if not names:
        names = tuple(f"part{number}" for number in range(settings.n_folds))
        cut = CutConfig(fraction=0.5) if task.valid is None else task.valid
        rest = {name: examples for name, examples in splits.items() if name != TRAIN}
        splits = rest | cutter.deal(splits.get(TRAIN, []), names, cut)
    missing = [name for name in names if name not in splits]
    if missing:
        raise SequenceError(
            f"{task.name}: cross_validation.parts: no split {missing[0]!r}; the files have: {', '.join(splits) or 'none'}"
        )
    test = names[settings.fold]
    following = names[(settings.fold + 1) % len(names)]
    valid = {following} if settings.valid == "next" else set()
    train = [name for name in names if name != test and name not in valid]
    notes.append(f"cross-validation: test {test}, train {', '.join(train)}" + (f", valid {following}" if valid else ""))
    found = {name: examples for name, examples in splits.items() if name not in names}
    found[TRAIN] = found.get(TRAIN, []) + [example for name in train for example in splits[name]]
    if valid:
        found[VALID] = splits[following]
    found[TEST] = splits[test]
    return found


class _Cutter:
    """Cuts train along groups that belong together."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def cut(self, examples: list[Example], settings: CutConfig, name: str) -> tuple[list[Example], list[Example]]:
        """Train without the cut, and the cut, both in the order of the files."""
        if len(examples) < 2:
            raise SequenceError(f"{name} cannot be cut from {len(examples)} training examples")
        members = self._members(examples, settings)
        wanted = max(round(settings.fraction * len(examples)), 1)
        taken: list[int] = []
        for group in members:
            if len(taken) + len(group) <= max(wanted * (1 + _SLACK), 1):
                taken += group
            if len(taken) >= wanted:
                break
        if not taken:
            taken = min(members, key=len)
        if len(taken) == len(examples):
            raise SequenceError(
                f"{name} cannot be cut from train: its {len(examples):,} sequences are all near each other; "
                "keep_together: identical cuts between variants of one protein"
            )
        self._notes.append(
            f"{name}: {len(taken):,} of {len(examples):,} examples cut from train ({self._how(settings)})"
        )
        chosen = set(taken)
        rest = [example for row, example in enumerate(examples) if row not in chosen]
        return rest, [examples[row] for row in sorted(chosen)]

    def deal(self, examples: list[Example], names: Sequence[str], settings: CutConfig) -> Splits:
        """Parts of about the same size."""
        parts: dict[str, list[int]] = {name: [] for name in names}
        members = self._members(examples, settings)
        if len(members) < len(names):
            raise SequenceError(f"{len(members)} groups of sequences cannot be dealt to {len(names)} parts")
        for group in sorted(members, key=len, reverse=True):
            parts[min(names, key=lambda name: len(parts[name]))] += group
        self._notes.append(f"{len(names)} parts dealt from {len(examples):,} examples ({self._how(settings)})")
        return {name: [examples[row] for row in sorted(rows)] for name, rows in parts.items()}

    def _how(self, settings: CutConfig) -> str:
        kept = (
            "identical sequences"
            if settings.keep_together == "identical"
            else "sequences of about 70 % identity and more"
        )
        return f"seed {settings.seed}; {kept} stay together"

    def _members(self, examples: list[Example], settings: CutConfig) -> list[list[int]]:
        """Rows of each group, in an order that depends on the sequences and the seed alone."""
        digests = [_digest(example.ids, settings.seed) for example in examples]
        # Near groups are found among sequences in this order, so that they do not depend on that of the files.
        order = sorted(range(len(examples)), key=digests.__getitem__)
        labels = self._groups([examples[row].ids for row in order], settings)
        found: dict[object, list[int]] = {}
        for row, label in zip(order, labels, strict=True):
            found.setdefault(label, []).append(row)
        # Dictionaries keep the order of insertion: groups come by their smallest digest.
        return list(found.values())

    def _groups(self, sequences: list[np.ndarray], settings: CutConfig) -> Sequence[object]:
        identical = [ids.tobytes() for ids in sequences]
        if settings.keep_together == "identical":
            return identical
        different = list(dict.fromkeys(identical))
        labels = groups([np.frombuffer(text, dtype=np.uint8) for text in different])
        sizes = np.bincount(labels)
        family = int(sizes.argmax())
        is_one_protein = sizes[family] > max(_VARIANTS * len(different), 1)
        if settings.keep_together == "near" or not is_one_protein:
            family = -1
        else:
            self._notes.append(
                f"{sizes[family]:,} of {len(different):,} different sequences of train hang together as near neighbours: taken for "
                "variants of one protein, of which only identical ones are kept together (keep_together: near keeps all)"
            )
        number = dict(zip(different, labels.tolist(), strict=True))
        return [text if number[text] == family else number[text] for text in identical]


def _digest(ids: np.ndarray, seed: int) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=16, salt=seed.to_bytes(8, "little")).digest()
