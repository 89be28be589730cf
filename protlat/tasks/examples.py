"""One file of a task -> examples: residues as tokens, labels understood, each with the split that its file names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from protlat.alphabet import PROTEIN
from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.cleaning import CleanRecord, LabelLengthError, clean, kept_places
from protlat.tasks.config import TaskConfig
from protlat.tasks.data import MISSING, PairTarget
from protlat.tasks.labels import ResidueEncoder, Translator, number_of, residue_numbers
from protlat.tasks.readers.base import RawLabel, RawSet, SourceConfig

# By type: name of a class; names; a value; codes in order of occurrence; values; coordinates.
Label = str | tuple[str, ...] | float | np.ndarray | PairTarget


@dataclass
class Example:
    """One labelled sequence.

    Attributes
    ----------
    name : str
    ids : numpy.ndarray, shape (L,), uint8
    label : Label
        By type of the task.
    split : str
        As its file names it, "" where it names none.
    where : str
        ``FILE:LINE``, for messages.
    """

    name: str
    ids: np.ndarray
    label: Label
    split: str
    where: str


@dataclass
class LabelAccount:
    """What became of labels while they were read.

    Attributes
    ----------
    left_out : Counter
        Labels that a map leaves out, by what was written: proteins, or residues of per-residue tasks.
    n_unknown : int
        Residues whose label is missing or left out (proteins without label are left out, and counted with the records).
    n_masked, n_elsewhere : int
        Residues that a mask hides; residues that are not among those that `restrict` names.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    n_unknown: int = 0
    n_masked: int = 0
    n_elsewhere: int = 0


class ExampleReader:
    """Turns the records of a task's files into examples.

    Parameters
    ----------
    task : TaskConfig

    Attributes
    ----------
    residue_classes : ResidueEncoder
        Classes of residues in the order of their occurrence over all files.
    report : SequenceReport
        Records and residues, over all files.
    account : LabelAccount
    """

    def __init__(self, task: TaskConfig) -> None:
        self.task = task
        self.residue_classes = ResidueEncoder()
        self.report = SequenceReport()
        self.account = LabelAccount()
        self._is_wanted = np.ones(len(PROTEIN), dtype=bool)
        if task.restrict:
            self._is_wanted[:] = False
            self._is_wanted[[PROTEIN.ids[letter] for letter in task.restrict]] = True

    def examples(self, source: SourceConfig, raw: RawSet) -> list[Example]:
        """Examples of one file, in its order.

        Raises
        ------
        SequenceError
            A record breaks the sequence policy, its labels do not fit, or a label is unknown or out of range.
        """
        translate = Translator(self.task, source, self.account.left_out)
        found = []
        for record in clean(raw, self.task.policy, self.report):
            where = f"{raw.path}:{raw.lines[record.row]}"
            try:
                label = self._label(raw, record, translate, where)
            except LabelLengthError as error:
                if self.task.inconsistent == "error":
                    raise SequenceError(f"{error}; inconsistent: skip leaves such records out") from None
                self._leave_out(raw, record, "labels do not fit", str(error))
                continue
            if label is not None:
                split = source.split or raw.splits[record.row]
                name = raw.names[record.row]
                found.append(Example(name, record.ids, label, source.rename_splits.get(split, split), where))
        return found

    def _leave_out(self, raw: RawSet, record: CleanRecord, reason: str, detail: str = "") -> None:
        self.report.n_kept -= 1
        self.report.n_residues_kept -= len(record.ids)
        self.report.skip(raw.path, raw.lines[record.row], raw.names[record.row], reason, detail)

    def _label(self, raw: RawSet, record: CleanRecord, translate: Translator, where: str) -> Label | None:
        written = raw.labels[record.row]
        named = f"{where}: {raw.names[record.row]}"
        if written is None or (isinstance(written, str) and not written):
            self._leave_out(raw, record, "no label")
            return None
        if isinstance(written, PairTarget):
            return _kept_pairs(written, record, raw)
        if self.task.is_per_residue:
            return self._residues(written, raw, record, translate, named)
        if self.task.type == "sequence_value":
            value = number_of(_one_text(written, named), self.task, named)
            if np.isnan(value):
                self._leave_out(raw, record, "no label")
                return None
            return value
        if self.task.type == "sequence_multilabel":
            return self._names(written, raw, record, translate, named)
        name = translate(_one_text(written, named), named)
        if name is None:
            is_left_out = translate.is_left_out(_one_text(written, named))
            self._leave_out(raw, record, "label left out by the task" if is_left_out else "no label", str(written))
        return name

    def _names(
        self, written: RawLabel, raw: RawSet, record: CleanRecord, translate: Translator, where: str
    ) -> tuple[str, ...] | None:
        assert isinstance(written, str | list | tuple)
        parts = written.split(self.task.separator) if isinstance(written, str) else written
        names = [translate(part.strip(), where) for part in parts]
        kept = tuple(dict.fromkeys(name for name in names if name is not None))
        if not kept:
            self._leave_out(raw, record, "no label", str(written))
            return None
        return kept

    def _residues(
        self, written: RawLabel, raw: RawSet, record: CleanRecord, translate: Translator, where: str
    ) -> np.ndarray:
        if self.task.type == "residue_value":
            values = residue_numbers(written, self.task, where)
        else:
            assert isinstance(written, str | list | tuple)
            values = self.residue_classes.encode(written, translate, where)
        places = kept_places(record, len(values), raw)
        values = values if places is None else values[places]
        missing = np.isnan(values) if self.task.type == "residue_value" else values == MISSING
        self.account.n_unknown += int(np.count_nonzero(missing))
        hidden = ~self._is_wanted[record.ids]
        self.account.n_elsewhere += int(np.count_nonzero(hidden & ~missing))
        mask = raw.masks[record.row]
        if mask is not None:
            masked = _mask_of(mask, where)
            places = kept_places(record, len(masked), raw, "mask characters")
            masked = masked if places is None else masked[places]
            self.account.n_masked += int(np.count_nonzero(masked & ~missing & ~hidden))
            hidden |= masked
        values[hidden] = np.nan if self.task.type == "residue_value" else MISSING
        return values


def _one_text(written: RawLabel, where: str) -> str:
    if isinstance(written, str):
        return written
    assert isinstance(written, list | tuple)
    if len(written) != 1:
        raise SequenceError(f"{where}: {len(written)} labels where the task has one per protein")
    return written[0]


def _mask_of(mask: str, where: str) -> np.ndarray:
    """True where a residue is not to be scored."""
    raw = np.frombuffer(mask.encode("utf-8"), dtype=np.uint8)
    is_zero = raw == ord("0")
    odd = np.flatnonzero(~is_zero & (raw != ord("1")))
    if len(odd):
        raise SequenceError(
            f"{where}: mask has {chr(raw[odd[0]])!r} at position {int(odd[0]) + 1}; allowed: 1 (scored) and 0 (not scored)"
        )
    return is_zero


def _kept_pairs(target: PairTarget, record: CleanRecord, raw: RawSet) -> PairTarget:
    places = kept_places(record, len(target.xyz), raw, "coordinates")
    return target if places is None else PairTarget(target.xyz[places], target.index[places])
