"""Residues of labelled records through the sequence policy, with labels and masks kept in step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from protlat.data.policies import SequencePolicy, clean_block, from_sequences, warn_if_nucleotides
from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.readers.base import RawSet

Inconsistent = Literal["error", "skip"]
# Characters that only lay the text out: labels may or may not have been written with them.
_LAYOUT = frozenset(b" \t\v\f0123456789")


class LabelLengthError(SequenceError):
    """Labels are not as many as residues."""


@dataclass(frozen=True)
class CleanRecord:
    """One record whose residues passed the policy.

    Attributes
    ----------
    row : int
        Its place in the `RawSet`.
    ids : numpy.ndarray, shape (L,), uint8
        Tokens of the protein alphabet.
    raw_length : int
        Characters as written.
    gone : numpy.ndarray, shape (n,), int64
        Places of the written characters that were dropped, ascending; empty for almost all records.
    """

    row: int
    ids: np.ndarray
    raw_length: int
    gone: np.ndarray


def clean(raw: RawSet, policy: SequencePolicy, report: SequenceReport) -> list[CleanRecord]:
    """Records that the policy keeps, in order; what was changed or left out is counted in `report`.

    Raises
    ------
    SequenceError
        A record breaks a policy that says ``error``.
    """
    # The header's place carries the row: the cleaned block has fewer records.
    rows = [str(row) for row in range(len(raw))]
    block = from_sequences(raw.path, raw.names, rows, raw.residues, raw.lines)
    warn_if_nucleotides(block, report)
    dropped: list[np.ndarray] = []
    cleaned = clean_block(block, policy, report, dropped)
    gone = np.concatenate(dropped) if dropped else np.zeros(0, dtype=np.int64)
    starts = block.residues.offsets
    borders = np.searchsorted(gone, starts)
    flat = np.frombuffer(cleaned.residues.data, dtype=np.uint8)
    records = []
    for header, (start, end) in zip(
        cleaned.headers.to_list(), itertools.pairwise(cleaned.residues.offsets.tolist()), strict=True
    ):
        row = int(header)
        own = gone[borders[row] : borders[row + 1]] - starts[row]
        records.append(CleanRecord(row, flat[start:end], len(raw.residues[row]), own))
    return records


def kept_places(record: CleanRecord, n_labels: int, raw: RawSet, what: str = "labels") -> np.ndarray | None:
    """Which of a record's labels belong to residues that were kept; None for all of them, as they stand.

    Labels may have been written for the residues as they stood (with a final ``*``, gaps or blanks), for those without
    blanks and numbers, or for the residues alone.

    Raises
    ------
    LabelLengthError
        The labels fit none of these: names file, line, identifier and both lengths.
    """
    n_residues = len(record.ids)
    if n_labels == n_residues:
        return None
    if len(record.gone):
        written = np.ones(record.raw_length, dtype=bool)
        written[record.gone] = False
        if n_labels == record.raw_length:
            return np.flatnonzero(written)
        text = raw.residues[record.row]
        visible = np.array([byte not in _LAYOUT for byte in text], dtype=bool)
        if n_labels == int(visible.sum()):
            return np.flatnonzero(written[visible])
    written_as = f" ({record.raw_length:,} characters as written)" if len(record.gone) else ""
    raise LabelLengthError(
        f"{raw.path}:{raw.lines[record.row]}: {raw.names[record.row]}: {n_labels:,} {what} for {n_residues:,} residues{written_as}"
    )
