"""A labelled file without a YAML: what its labels are follows from how they look."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.config import CutConfig, TaskConfig
from protlat.tasks.data import PairTarget, TaskType
from protlat.tasks.names import CHAINS, TABLES, plain_suffix
from protlat.tasks.readers import FastaSource, RawSet, ReadContext, StructuresSource, TableSource

# Whole numbers of more different values than these are measurements, not classes.
_MAX_NUMBERED_CLASSES = 20
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WHOLE = re.compile(r"[-+]?\d+")


def task_of_file(path: str | Path) -> TaskConfig:
    """Settings for a FASTA with TARGET= in its headers, a table with the usual columns, or lines of chains.

    A test of a fifth and a validation set of a tenth are cut where the file brings none.

    Raises
    ------
    SequenceError
        The file cannot be read, has no labels, or they look like no kind of label.
    """
    path = Path(path)
    suffix = plain_suffix(path)
    source: FastaSource | TableSource | StructuresSource
    if suffix in CHAINS:
        source = StructuresSource(path=path.name)
    elif suffix in TABLES:
        source = TableSource(path=path.name)
    else:
        source = FastaSource(path=path.name)
    raw = source.read(ReadContext(path.parent, per_residue=True), SequenceReport())
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", path.name.partition(".")[0]) or "task"
    return TaskConfig(
        name=name, title=path.name, type=task_type_of(raw), sources=(source,), test=CutConfig(fraction=0.2)
    )


def task_type_of(raw: RawSet) -> TaskType:
    """Type of task that labels look like.

    Raises
    ------
    SequenceError
        There are none, or nearly every one is another text.
    """
    rows = [row for row, label in enumerate(raw.labels) if label is not None and len_of(label)]
    if not rows:
        raise SequenceError(
            f"{raw.path}: no labels: no record has TARGET= in its header; a YAML of the task says where labels are (docs/tasks.md)"
        )
    first = raw.labels[rows[0]]
    if isinstance(first, PairTarget):
        return "pair"
    labels = [raw.labels[row] for row in rows]
    if _one_per_residue(labels, [raw.residues[row] for row in rows]):
        return "residue_class"
    texts = [
        label if isinstance(label, str) else ";".join(label)
        for label in labels
        if not isinstance(label, PairTarget) and label
    ]
    if all(
        len(re.split(r"[\s,;]+", text)) == len(raw.residues[row]) > 1 for text, row in zip(texts, rows, strict=True)
    ):
        return "residue_value"
    different = set(texts)
    if all(_NUMBER.fullmatch(text) for text in different):
        whole = all(_WHOLE.fullmatch(text) for text in different)
        return "sequence_class" if whole and len(different) <= _MAX_NUMBERED_CLASSES else "sequence_value"
    if any(";" in text for text in different):
        return "sequence_multilabel"
    if len(different) > _MAX_NUMBERED_CLASSES and len(different) > len(texts) / 2:
        raise SequenceError(
            f"{raw.path}: {len(different):,} different labels for {len(texts):,} sequences, such as {texts[0][:40]!r}: neither "
            "classes nor numbers; a YAML of the task says what they are (docs/tasks.md)"
        )
    return "sequence_class"


def len_of(label: object) -> int:
    """Characters or parts of a label as written; 1 for coordinates."""
    return len(label) if isinstance(label, str | list | tuple) else 1


def _one_per_residue(labels: Sequence[object], residues: Sequence[bytes]) -> bool:
    """Whether every label is as long as its sequence (a final ``*`` aside) and some have more than one letter."""
    pairs = [(len_of(label), text) for label, text in zip(labels, residues, strict=True)]
    return all(n in (len(text), len(text.rstrip(b"*"))) for n, text in pairs) and any(n > 1 for n, _ in pairs)
