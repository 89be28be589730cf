"""A labelled set in memory: sequences as token ids, labels as arrays, by split."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

TaskType = Literal["sequence_class", "sequence_multilabel", "sequence_value", "residue_class", "residue_value", "pair"]
# Label of a class that is not known or not to be scored; values use nan.
MISSING = -1
TRAIN, VALID = "train", "valid"


@dataclass(frozen=True)
class PairTarget:
    """Coordinates from which the contacts of one chain follow.

    Attributes
    ----------
    xyz : numpy.ndarray, shape (L, 3), float32
        C-beta (C-alpha for glycine) in angstrom; nan where it is unknown.
    index : numpy.ndarray, shape (L,), int64
        Number of each residue along the chain, unobserved ones counted: sequence separations are its differences.
    """

    xyz: np.ndarray
    index: np.ndarray


# sequence_class: int64 (N,), MISSING where not known. sequence_multilabel: bool (N, C). sequence_value: float32 (N,).
# residue_class: N arrays of int64 (L,). residue_value: N arrays of float32 (L,). pair: N PairTargets.
Labels = np.ndarray | tuple[np.ndarray, ...] | tuple[PairTarget, ...]


@dataclass(frozen=True)
class LabelledSplit:
    """One split of a task.

    Attributes
    ----------
    names : tuple of str
        Identifiers, unique within the task.
    ids : tuple of numpy.ndarray, shape (L,), uint8
        Tokens of the protein alphabet, without specials.
    labels : numpy.ndarray or tuple
        By type of the task: sequence_class int64 (N,), sequence_multilabel bool (N, C), sequence_value float32 (N,),
        residue_class N arrays int64 (L,), residue_value N arrays float32 (L,), pair N `PairTarget`. -1 and nan mark
        labels that are missing or masked: they are neither trained on nor scored.
    """

    names: tuple[str, ...]
    ids: tuple[np.ndarray, ...]
    labels: Labels

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n_residues(self) -> int:
        return sum(len(ids) for ids in self.ids)

    def take(self, rows: Sequence[int]) -> LabelledSplit:
        """The examples at `rows`, in that order."""
        chosen = self.labels[np.asarray(rows, dtype=np.int64)] if isinstance(self.labels, np.ndarray) else None
        labels: Labels = chosen if chosen is not None else tuple(self.labels[row] for row in rows)  # type: ignore[assignment]  # one kind throughout
        return LabelledSplit(tuple(self.names[row] for row in rows), tuple(self.ids[row] for row in rows), labels)

    def fingerprint(self) -> str:
        """SHA-256 over the sequences in order; labels have no part in it, since embeddings do not depend on them."""
        digest = hashlib.sha256()
        for ids in self.ids:
            digest.update(len(ids).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(ids, dtype=np.uint8).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class TaskData:
    """All splits of a task.

    Attributes
    ----------
    name : str
    type : TaskType
    classes : tuple of str
        Names of the classes, in the order of their codes; empty for values and pairs.
    splits : dict of str to LabelledSplit
        ``train``, ``valid`` and any number of tests, in the order of the task's file.
    warnings : tuple of str
        What the checks found, one line each.
    """

    name: str
    type: TaskType
    classes: tuple[str, ...]
    splits: dict[str, LabelledSplit]
    warnings: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        """Names of the splits that are for scoring only."""
        return tuple(name for name in self.splits if name not in (TRAIN, VALID))

    @property
    def is_per_residue(self) -> bool:
        return self.type in ("residue_class", "residue_value")
