"""What happens to letters that are not plain residues; every choice is counted."""

from __future__ import annotations

from typing import Literal

import numpy as np

from protlat.alphabet import PROTEIN, STANDARD_RESIDUES
from protlat.config import Config
from protlat.data.records import MASK_BYTE, MASK_TEXT, RecordBlock, SequenceRecord, SequenceReport, Texts
from protlat.errors import SequenceError

# Letters that ESM-2's alphabet has an id for besides the 20 standard residues; J has none.
KEPT_LETTERS = "UZOB"
_NUCLEOTIDE_RECORDS = 1000
_NUCLEOTIDE_SHARE = 0.95
_MIN_EVIDENCE = 100

# Codes of raw characters: up to _X they are final ids, above it something has to be done. Lower case has the top bit.
_X = PROTEIN.ids["X"]
_J, _STOP, _GAP, _BLANK, _DIGIT, _MASK_TAIL, _INVALID = range(len(PROTEIN), len(PROTEIN) + 7)
_MASK = PROTEIN.mask_id
_LOWER = 128
_UNKNOWN_IDS = tuple(PROTEIN.ids[letter] for letter in KEPT_LETTERS)


class SequencePolicy(Config):
    """What to do with letters that are not one of the 20 standard residues."""

    unknown: Literal["map", "keep", "error", "skip"] = "map"
    """U, Z, O, B, J: map (to X), keep (U Z O B keep their ESM-2 ids, J becomes X), error (stop), skip (leave the record out)."""
    gaps: Literal["error", "strip", "skip"] = "error"
    """'-' and '.' in a sequence: error (stop), strip (remove them), skip (leave the record out)."""
    stops: Literal["map", "error", "skip"] = "map"
    """'*' inside a sequence: map (to X), error (stop), skip (leave the record out); a '*' at the end is always dropped."""


def _code_table() -> bytes:
    table = np.full(256, _INVALID, dtype=np.uint8)
    for letter in STANDARD_RESIDUES + "X" + KEPT_LETTERS:
        table[ord(letter)] = PROTEIN.ids[letter]
    table[ord("J")] = _J
    for upper in range(ord("A"), ord("Z") + 1):
        table[upper + 32] = _LOWER | table[upper]
    for letters, code in (("*", _STOP), ("-.", _GAP), (" \t\v\f", _BLANK), ("0123456789", _DIGIT)):
        for letter in letters:
            table[ord(letter)] = code
    return table.tobytes()


def _letter_table() -> bytes:
    table = np.full(256, ord("X"), dtype=np.uint8)
    for letter in STANDARD_RESIDUES + "X" + KEPT_LETTERS:
        table[PROTEIN.ids[letter]] = ord(letter)
    table[_MASK] = MASK_BYTE[0]
    return table.tobytes()


_CODES = _code_table()
_LETTERS = _letter_table()
# Ids below those of the standard residues are <cls>, <pad>, <eos> and <unk>: no raw character has them.
assert max(PROTEIN.ids[letter] for letter in STANDARD_RESIDUES) < _X < min(_UNKNOWN_IDS)


def clean_block(
    block: RecordBlock, policy: SequencePolicy, report: SequenceReport, gone: list[np.ndarray] | None = None
) -> RecordBlock:
    """Apply a policy to a block's residues, encode them, and leave out empty and unreadable records.

    The residues of the result are ids of `protlat.alphabet.PROTEIN`, one byte each; `records_of` gives them as letters.
    `gone`, where given, receives the places in ``block.residues.data`` of the characters that were dropped, so that what
    runs beside the residues (labels) can follow.

    Raises
    ------
    SequenceError
        A record breaks a policy that says ``error``; the message names file, line, identifier and position.
    """
    report.n_records += len(block)
    report.n_residues_in += len(block.residues.data)
    residues = Texts(block.residues.data.translate(_CODES), block.residues.offsets)
    codes = np.frombuffer(residues.data, dtype=np.uint8)
    reasons: dict[int, tuple[str, str]] = {}
    if len(codes) and codes.max() > _X:
        residues = _clean_odd(block, codes.copy(), policy, report, reasons, gone)
    n_x = int(np.count_nonzero(codes == _X) + np.count_nonzero(codes == _X + _LOWER))
    if n_x:
        report.unknown["X"] += n_x
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


def records_of(block: RecordBlock) -> list[SequenceRecord]:
    """A cleaned block as single records, residues as letters, ``<mask>`` written out."""
    letters = Texts(block.residues.data.translate(_LETTERS), block.residues.offsets)
    rows = zip(
        block.identifiers.to_list(), block.headers.to_list(), letters.to_list(), block.lines.tolist(), strict=True
    )
    return [
        SequenceRecord(name.decode(), header.decode(), text.replace(MASK_BYTE, MASK_TEXT), f"{block.source}:{line}")
        for name, header, text, line in rows
    ]


def _clean_odd(
    block: RecordBlock,
    codes: np.ndarray,
    policy: SequencePolicy,
    report: SequenceReport,
    reasons: dict[int, tuple[str, str]],
    gone_to: list[np.ndarray] | None,
) -> Texts:
    """Cleaned ids of a block with unusual characters; notes the records to leave out in `reasons`.

    Work beyond two passes grows with the number of unusual characters only.
    """
    offsets = block.residues.offsets
    _collapse_masks(block.residues, codes, report)
    # Places of all characters that need something, and their codes without the case.
    places = np.flatnonzero(codes > _X)
    odd = codes[places]
    lower = odd >= _LOWER
    if lower.any():
        report.changes["lower-case residues made upper-case"] += int(np.count_nonzero(lower))
        report.changes["records with lower-case residues"] += _n_records(places[lower], offsets)
        odd = odd & (_LOWER - 1)
        codes[places] = odd
    dropped = (odd == _BLANK) | (odd == _DIGIT) | (odd == _MASK_TAIL)
    report.changes["blanks inside sequences dropped"] += int(np.count_nonzero(odd == _BLANK))
    report.changes["digits inside sequences dropped"] += int(np.count_nonzero(odd == _DIGIT))

    refuse = _Refusals(block, reasons)
    refuse(places[odd == _INVALID], "skip", "character that is no residue")
    gaps = odd == _GAP
    if policy.gaps == "strip":
        report.changes["gaps stripped"] += int(np.count_nonzero(gaps))
        dropped |= gaps
    else:
        refuse(places[gaps], policy.gaps, "gap", "--gaps strip removes gaps, --gaps skip leaves such records out")

    dropped |= _terminal_stops(places, odd, dropped, offsets)
    report.changes["terminal * dropped"] += int(np.count_nonzero(dropped & (odd == _STOP)))
    stops = places[(odd == _STOP) & ~dropped]
    if policy.stops == "map":
        report.changes["internal * mapped to X"] += len(stops)
    else:
        refuse(stops, policy.stops, "internal stop", "--stops map makes them X, --stops skip leaves such records out")

    unknown = np.isin(odd, (*_UNKNOWN_IDS, _J))
    if unknown.any():
        _count_unknown(block, places[unknown], report)
        advice = "--unknown map makes them X, --unknown keep keeps them"
        if policy.unknown in ("error", "skip"):
            refuse(places[unknown], policy.unknown, "unknown residue", advice)
    # Whatever is left and has no id of its own becomes X; in records that are left out it does not matter.
    keeps_id = np.isin(odd, _UNKNOWN_IDS) if policy.unknown == "keep" else np.zeros(len(odd), dtype=bool)
    mapped = unknown & ~keeps_id
    if policy.unknown in ("map", "keep") and mapped.any():
        report.changes["unknown residues mapped to X"] += int(np.count_nonzero(mapped))
    no_id = (odd > _X) & ~keeps_id & (odd != _MASK)
    codes[places[no_id]] = _X
    if not dropped.any():
        return Texts(codes.tobytes(), offsets)
    gone = places[dropped]
    if gone_to is not None:
        gone_to.append(gone)
    return Texts(np.delete(codes, gone).tobytes(), offsets - np.searchsorted(gone, offsets))


def _collapse_masks(residues: Texts, codes: np.ndarray, report: SequenceReport) -> None:
    """Turn each ``<mask>`` into one id and characters to drop, so that positions stay in step."""
    size = len(MASK_TEXT)
    if b"<" not in residues.data:
        return
    lowered = residues.data.lower()
    place = lowered.find(MASK_TEXT)
    while place >= 0:
        owner = np.searchsorted(residues.offsets, [place, place + size - 1], side="right")
        if owner[0] == owner[1]:
            codes[place] = _MASK
            codes[place + 1 : place + size] = _MASK_TAIL
            report.changes["<mask> tokens honoured"] += 1
        place = lowered.find(MASK_TEXT, place + size)


def _terminal_stops(places: np.ndarray, odd: np.ndarray, dropped: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Which of `places` hold a ``*`` that only dropped characters and other stops follow in its record."""
    stop = odd == _STOP
    if not stop.any():
        return stop
    # A place is in the tail when all characters from it to the record's end are stops or dropped. Runs of such
    # neighbours in `places` are found by their last member, which must lie at the record's end.
    soft = np.flatnonzero(stop | dropped)
    where = places[soft]
    owner = np.searchsorted(offsets, where, side="right") - 1
    ends_run = np.append((where[1:] != where[:-1] + 1) | (owner[1:] != owner[:-1]), True)
    run = np.cumsum(np.concatenate(([False], ends_run[:-1])))
    at_end = where[ends_run] == offsets[owner[ends_run] + 1] - 1
    found = np.zeros(len(places), dtype=bool)
    found[soft] = at_end[run]
    return found & stop


def _count_unknown(block: RecordBlock, places: np.ndarray, report: SequenceReport) -> None:
    raw = np.frombuffer(block.residues.data, dtype=np.uint8)[places] & ~np.uint8(32)
    values, counts = np.unique(raw, return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        report.unknown[chr(value)] += count


class _Refusals:
    """Stops at the first of some places, or notes the records that hold them as left out."""

    def __init__(self, block: RecordBlock, reasons: dict[int, tuple[str, str]]) -> None:
        self.block, self.reasons = block, reasons

    def __call__(self, places: np.ndarray, action: str, what: str, advice: str = "") -> None:
        if not len(places):
            return
        block, offsets = self.block, self.block.residues.offsets
        owners = np.searchsorted(offsets, places, side="right") - 1
        for index, first in zip(*np.unique(owners, return_index=True), strict=True):
            place = int(places[first])
            value = block.residues.data[place]
            shown = chr(value) if 32 < value < 127 else f"byte 0x{value:02X}"
            detail = f"{shown} at position {place - int(offsets[index]) + 1}"
            if action == "error":
                name = block.identifiers[int(index)].decode()
                raise SequenceError(f"{block.source}:{block.lines[index]}: {name}: {what} {detail}; {advice}")
            self.reasons.setdefault(int(index), (what, detail))


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
