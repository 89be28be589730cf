"""What happens to letters that are not plain residues; every choice is counted."""

from __future__ import annotations

from typing import Literal

import numpy as np

from protlat.alphabet import STANDARD_RESIDUES
from protlat.config import Config
from protlat.data.records import MASK_BYTE, MASK_TEXT, RecordBlock, SequenceReport, Texts, offsets_of
from protlat.errors import SequenceError

# Letters that ESM-2's alphabet has an id for besides the 20 standard residues; J has none.
KEPT_LETTERS = "UZOB"
_UNKNOWN_LETTERS = "UZOBJ"
_NUCLEOTIDE_RECORDS = 1000
_NUCLEOTIDE_SHARE = 0.95
_MIN_EVIDENCE = 100

_PLAIN, _LOWER, _X, _UNKNOWN, _STOP, _GAP, _BLANK, _DIGIT, _MASK, _INVALID = range(10)


class SequencePolicy(Config):
    """What to do with letters that are not one of the 20 standard residues."""

    unknown: Literal["map", "keep", "error", "skip"] = "map"
    """U, Z, O, B, J: map (to X), keep (U Z O B keep their ESM-2 ids, J becomes X), error (stop), skip (leave the record out)."""
    gaps: Literal["error", "strip", "skip"] = "error"
    """'-' and '.' in a sequence: error (stop), strip (remove them), skip (leave the record out)."""
    stops: Literal["map", "error", "skip"] = "map"
    """'*' inside a sequence: map (to X), error (stop), skip (leave the record out); a '*' at the end is always dropped."""


def _class_table() -> bytes:
    table = np.full(256, _INVALID, dtype=np.uint8)
    for letters, kind in ((STANDARD_RESIDUES, _PLAIN), ("X", _X), (_UNKNOWN_LETTERS, _UNKNOWN)):
        for letter in letters:
            table[ord(letter)] = kind
            table[ord(letter.lower())] = _LOWER
    for letters, kind in (("*", _STOP), ("-.", _GAP), (" \t\v\f", _BLANK), ("0123456789", _DIGIT), ("#", _INVALID)):
        for letter in letters:
            table[ord(letter)] = kind
    return table.tobytes()


_CLASSES = _class_table()
_X_BYTE = ord("X")


def clean_block(block: RecordBlock, policy: SequencePolicy, report: SequenceReport) -> RecordBlock:
    """Apply a policy to a block's residues and leave out empty and unreadable records.

    Residues of the result are upper-case letters; ``<mask>`` is the single byte `MASK_BYTE`.

    Raises
    ------
    SequenceError
        A record breaks a policy that says ``error``; the message names file, line, identifier and position.
    """
    report.n_records += len(block)
    report.n_residues_in += len(block.residues.data)
    residues = block.residues
    classes = np.frombuffer(residues.data.translate(_CLASSES), dtype=np.uint8)
    if classes.any():
        residues, reasons = _clean_odd(block, classes, policy, report)
    else:
        reasons = {}
    keep = residues.lengths > 0
    for index in np.flatnonzero(~keep).tolist():
        reasons.setdefault(index, ("empty record", ""))
    for index in sorted(reasons):
        reason, detail = reasons[index]
        keep[index] = False
        report.skip(block.source, int(block.lines[index]), block.identifiers[index].decode(), reason, detail)
    cleaned = RecordBlock(block.source, block.identifiers, block.headers, residues, block.lines).take(keep)
    report.n_kept += len(cleaned)
    report.n_residues_kept += len(cleaned.residues.data)
    return cleaned


def _clean_odd(
    block: RecordBlock, classes: np.ndarray, policy: SequencePolicy, report: SequenceReport
) -> tuple[Texts, dict[int, tuple[str, str]]]:
    """Cleaned residues, and records to leave out with reason and detail, for a block with unusual characters."""
    data = np.frombuffer(block.residues.data, dtype=np.uint8).copy()
    classes = classes.copy()
    offsets = block.residues.offsets
    _collapse_masks(block.residues, data, classes, report)

    lower = np.flatnonzero(classes == _LOWER)
    if len(lower):
        report.changes["lower-case residues made upper-case"] += len(lower)
        report.changes["records with lower-case residues"] += _n_records(lower, offsets)
        data[lower] -= 32
        classes[lower] = np.frombuffer(_CLASSES, dtype=np.uint8)[data[lower]]

    report.changes["blanks inside sequences dropped"] += int(np.count_nonzero(classes == _BLANK))
    report.changes["digits inside sequences dropped"] += int(np.count_nonzero(classes == _DIGIT))
    dropped = (classes == _BLANK) | (classes == _DIGIT)
    reasons: dict[int, tuple[str, str]] = {}

    invalid = np.flatnonzero(classes == _INVALID)
    _refuse(invalid, "skip", "character that is no residue", block, data, reasons)

    gaps = np.flatnonzero(classes == _GAP)
    if len(gaps):
        if policy.gaps == "strip":
            report.changes["gaps stripped"] += len(gaps)
            dropped[gaps] = True
        else:
            _refuse(
                gaps,
                policy.gaps,
                "gap",
                block,
                data,
                reasons,
                "--gaps strip removes gaps, --gaps skip leaves such records out",
            )

    _drop_terminal_stops(classes, dropped, offsets, report)
    stops = np.flatnonzero((classes == _STOP) & ~dropped)
    if len(stops):
        if policy.stops == "map":
            report.changes["internal * mapped to X"] += len(stops)
            data[stops] = _X_BYTE
        else:
            _refuse(
                stops,
                policy.stops,
                "internal *",
                block,
                data,
                reasons,
                "--stops map makes them X, --stops skip leaves such records out",
            )

    unknown = np.flatnonzero(classes == _UNKNOWN)
    n_x = int(np.count_nonzero(classes == _X))
    if n_x:
        report.unknown["X"] += n_x
    if len(unknown):
        _clean_unknown(unknown, data, block, policy, report, reasons)
    if not dropped.any():
        return Texts(data.tobytes(), offsets), reasons
    kept_before = np.concatenate(([0], np.cumsum(~dropped)))
    return Texts(data[~dropped].tobytes(), kept_before[offsets]), reasons


def _collapse_masks(residues: Texts, data: np.ndarray, classes: np.ndarray, report: SequenceReport) -> None:
    """Turn each ``<mask>`` into `MASK_BYTE` followed by characters to drop, so that positions stay in step."""
    size = len(MASK_TEXT)
    if b"<" not in residues.data:
        return
    lowered = residues.data.lower()
    place = lowered.find(MASK_TEXT)
    while place >= 0:
        owner = np.searchsorted(residues.offsets, [place, place + size - 1], side="right")
        if owner[0] == owner[1]:
            data[place] = MASK_BYTE[0]
            classes[place] = _MASK
            # Not counted as blanks in the account: taken off again below.
            classes[place + 1 : place + size] = _BLANK
            report.changes["blanks inside sequences dropped"] -= size - 1
            report.changes["<mask> tokens honoured"] += 1
        place = lowered.find(MASK_TEXT, place + size)


def _drop_terminal_stops(classes: np.ndarray, dropped: np.ndarray, offsets: np.ndarray, report: SequenceReport) -> None:
    """Mark every ``*`` that only dropped characters follow in its record."""
    stops = np.flatnonzero(classes == _STOP)
    if not len(stops):
        return
    # Place of the last character of each record that is neither dropped nor a stop.
    solid = np.flatnonzero(~dropped & (classes != _STOP))
    owner = np.searchsorted(offsets, stops, side="right") - 1
    last = np.searchsorted(solid, offsets[1:][owner]) - 1
    last_solid = np.where(last >= 0, solid[np.maximum(last, 0)] if len(solid) else -1, -1)
    terminal = stops[stops > last_solid]
    report.changes["terminal * dropped"] += len(terminal)
    dropped[terminal] = True


def _clean_unknown(
    places: np.ndarray,
    data: np.ndarray,
    block: RecordBlock,
    policy: SequencePolicy,
    report: SequenceReport,
    reasons: dict[int, tuple[str, str]],
) -> None:
    values, counts = np.unique(data[places], return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        report.unknown[chr(value)] += count
    if policy.unknown in ("error", "skip"):
        _refuse(
            places,
            policy.unknown,
            "unknown residue",
            block,
            data,
            reasons,
            "--unknown map makes them X, --unknown keep keeps them",
        )
        return
    mapped = places if policy.unknown == "map" else places[data[places] == ord("J")]
    if len(mapped):
        report.changes["unknown residues mapped to X"] += len(mapped)
        data[mapped] = _X_BYTE


def _refuse(
    places: np.ndarray,
    action: str,
    what: str,
    block: RecordBlock,
    data: np.ndarray,
    reasons: dict[int, tuple[str, str]],
    advice: str = "",
) -> None:
    """Stop at the first of `places`, or note the records that hold them as left out."""
    if not len(places):
        return
    offsets = block.residues.offsets
    owners = np.searchsorted(offsets, places, side="right") - 1
    for index, first in zip(*np.unique(owners, return_index=True), strict=True):
        place = int(places[first])
        value = int(data[place])
        shown = chr(value) if 32 < value < 127 else f"byte 0x{value:02X}"
        detail = f"{shown} at position {place - int(offsets[index]) + 1}"
        if action == "error":
            name = block.identifiers[int(index)].decode()
            raise SequenceError(f"{block.source}:{block.lines[index]}: {name}: {what} {detail}; {advice}")
        reasons.setdefault(int(index), (what, detail))


def _n_records(places: np.ndarray, offsets: np.ndarray) -> int:
    return len(np.unique(np.searchsorted(offsets, places, side="right")))


def warn_if_nucleotides(block: RecordBlock, report: SequenceReport) -> None:
    """Warn, with the evidence, when the first records look like DNA or RNA."""
    n_records = min(len(block), _NUCLEOTIDE_RECORDS)
    sample = block.residues.data[: int(block.residues.offsets[n_records])].upper()
    letters = sample.translate(None, b" \t-.*0123456789")
    n_other = len(letters.translate(None, b"ACGTUN"))
    share = 1 - n_other / len(letters) if letters else 0.0
    if len(letters) >= _MIN_EVIDENCE and share >= _NUCLEOTIDE_SHARE:
        report.warn(
            f"{block.source}: looks like nucleotides, not proteins: {100 * share:.1f} % of the first {len(letters):,} letters "
            f"({n_records:,} records) are A C G T U N, where proteins have about 26 %"
        )


def from_sequences(
    source: str, names: list[str], headers: list[str], residues: list[bytes], lines: list[int]
) -> RecordBlock:
    """A block from single records, for formats that are read one by one."""
    return RecordBlock(
        source,
        Texts.of([name.encode() for name in names]),
        Texts.of([header.encode() for header in headers]),
        Texts.of(residues),
        np.asarray(lines, dtype=np.int64),
    )


__all__ = ["KEPT_LETTERS", "SequencePolicy", "clean_block", "from_sequences", "offsets_of", "warn_if_nucleotides"]
