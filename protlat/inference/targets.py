"""Which positions of which sequences are predicted, told before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from protlat.alphabet import Alphabet
from protlat.data.records import SkippedRecord
from protlat.inference.inputs import InputAccount, InputSequence, SequenceInput

TargetChoice = Literal["masks", "given", "all", "standard"]


@dataclass(frozen=True)
class Targets:
    """Chooses positions.

    Parameters
    ----------
    alphabet : Alphabet
    choice : str
        "masks": the sequence's own <mask> tokens; "given": `positions`; "all": every position; "standard": every
        position that holds one of the residues that can be predicted.
    positions_1based : tuple of int
        For "given".
    together : bool
        For "given": mask all in one pass.
    """

    alphabet: Alphabet
    choice: TargetChoice
    positions_1based: tuple[int, ...] = ()
    together: bool = False

    @property
    def in_one_pass(self) -> bool:
        """Whether all positions of a sequence are masked at once: its own masks always are."""
        return self.together or self.choice == "masks"

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """0-based positions to predict in a sequence, shape (P,), int64; those beyond its end are left out."""
        if self.choice == "given":
            return np.array([p - 1 for p in self.positions_1based if p <= len(ids)], dtype=np.int64)
        if self.choice == "all":
            return np.arange(len(ids))
        if self.choice == "standard":
            return np.flatnonzero(np.isin(ids, self.alphabet.replacement_ids))
        return np.flatnonzero(ids == self.alphabet.mask_id)

    def missing(self, ids: np.ndarray) -> list[int]:
        """Given 1-based positions that lie beyond a sequence's end."""
        return [position for position in self.positions_1based if position > len(ids)]


@dataclass
class TargetSurvey:
    """What `survey_targets` found.

    Attributes
    ----------
    n_positions, n_tokens : int
        To predict, and to compute for it.
    n_predicted, n_without, n_beyond : int
        Sequences with something to predict, without, and with given positions beyond their end.
    first_beyond : str
        A message about the first of the last.
    """

    n_positions: int = 0
    n_tokens: int = 0
    n_predicted: int = 0
    n_without: int = 0
    n_beyond: int = 0
    first_beyond: str = ""


def survey_targets(
    source: SequenceInput, targets: Targets, account: InputAccount, on_skip: Callable[[SkippedRecord], None]
) -> TargetSurvey:
    """Read the input once; `on_skip` receives each sequence, or part of one, that cannot be predicted."""
    found = TargetSurvey()
    for sequence in source.stream(account):
        n_positions = len(targets.positions(sequence.ids))
        found.n_positions += n_positions
        found.n_predicted += n_positions > 0
        found.n_tokens += (len(sequence.ids) + 2) * (min(n_positions, 1) if targets.in_one_pass else n_positions)
        missing = targets.missing(sequence.ids)
        if missing:
            found.n_beyond += 1
            name, length = sequence.row.name, len(sequence.ids)
            on_skip(_skipped(sequence, f"position beyond the sequence: {_listed(missing)} of {length}"))
            if not found.first_beyond:
                found.first_beyond = (
                    f"{sequence.source}: sequence {name!r} has {length} residues, so --positions {_listed(missing)} lies "
                    "beyond its end"
                )
        elif not n_positions:
            found.n_without += 1
            on_skip(_skipped(sequence, "no <mask> to predict" if targets.choice == "masks" else "no residue to score"))
    return found


def _skipped(sequence: InputSequence, reason: str) -> SkippedRecord:
    file, _, line = sequence.source.rpartition(":")
    return SkippedRecord(file, int(line), sequence.row.name, reason)


def _listed(positions: Sequence[int]) -> str:
    shown = ", ".join(map(str, positions[:10]))
    return shown if len(positions) <= 10 else f"{shown} and {len(positions) - 10} more"
