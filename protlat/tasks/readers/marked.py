"""FASTA with marks inside the sequence: a character after a residue says something about it (MusiteDeep)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.readers.base import RawSet, ReadContext, SourceConfig, located, split_of, text_mapping
from protlat.tasks.readers.fasta import header_keys, read_records


class MarkedSource(SourceConfig):
    """FASTA whose residues may be followed by a mark."""

    kind: Literal["marked"] = "marked"
    marks: dict[str, str] = Field(default_factory=lambda: {"#": "1"}, min_length=1)
    """Label that each mark stands for; a mark is one character that is no residue."""
    unmarked: str = "0"
    """Label of residues without a mark."""
    marked_residues: str = ""
    """Residues that may carry a mark, such as STY; empty: all. A mark elsewhere is an error."""

    @field_validator("marks", mode="before")
    @classmethod
    def _text_marks(cls, value: object) -> object:
        return text_mapping(value)

    @field_validator("marks")
    @classmethod
    def _are_marks(cls, value: dict[str, str]) -> dict[str, str]:
        for mark in value:
            if len(mark) != 1 or not mark.isascii() or mark.isalpha() or mark.isspace() or mark in ">*-.;":
                raise ValueError(f"{mark!r}: one ASCII character that is no letter, blank, or any of > * - . ;")
        return value

    def read(self, context: ReadContext, report: SequenceReport) -> RawSet:
        path = located(context.folder, self.path)
        labels = {ord(mark): label for mark, label in self.marks.items()}
        allowed = frozenset(self.marked_residues.upper().encode() + self.marked_residues.lower().encode())
        found = RawSet(path)
        for record in read_records(path, report):
            where = f"{path}:{record.line}: {record.name}"
            residues = record.text.translate(None, bytes(labels))
            label = self._labels(record.text, residues, labels, allowed, where)
            keys = header_keys(record.header)
            split = split_of(keys.get("SET", ""), keys.get("VALIDATION", ""), where)
            found.add(record.name, residues, record.line, label, split, keys.get("MASK"))
        return found

    def _labels(
        self, text: bytes, residues: bytes, labels: dict[int, str], allowed: frozenset[int], where: str
    ) -> str | list[str]:
        marked: dict[int, str] = {}
        is_mark = np.isin(np.frombuffer(text, dtype=np.uint8), list(labels))
        for n_before, place in enumerate(np.flatnonzero(is_mark).tolist()):
            owner = place - n_before - 1
            if owner < 0 or owner in marked:
                fault = "follows no residue" if owner < 0 else "follows another mark"
                raise SequenceError(f"{where}: mark {chr(text[place])!r} at character {place + 1} {fault}")
            if allowed and residues[owner] not in allowed:
                raise SequenceError(
                    f"{where}: mark {chr(text[place])!r} on {chr(residues[owner])} at position {owner + 1}; allowed on: {self.marked_residues}"
                )
            marked[owner] = labels[text[place]]
        per_residue = [self.unmarked] * len(residues)
        for owner, label in marked.items():
            per_residue[owner] = label
        return (
            "".join(per_residue) if all(len(label) == 1 for label in (*labels.values(), self.unmarked)) else per_residue
        )
