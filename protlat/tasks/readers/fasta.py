"""FASTA with labels in the header (biotrainer and FLIP), or per residue in a parallel FASTA joined by the first word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, field_validator

from protlat.data.compression import ByteSource
from protlat.data.fasta import cut_blocks, parse_block
from protlat.data.records import SequenceReport
from protlat.errors import SequenceError
from protlat.tasks.readers.base import RawSet, ReadContext, SourceConfig, located, split_of

# biotrainer writes KEY=value; values hold no blanks.
_KEY_VALUE = re.compile(r"(?:^|\s)([A-Za-z_]+)=(\S*)")


@dataclass(frozen=True)
class FastaRecord:
    """One record as written: `line` is the 1-based line of its header."""

    name: str
    header: str
    text: bytes
    line: int


class FastaSource(SourceConfig):
    """FASTA of sequences; labels, split and mask in its headers or in parallel files."""

    kind: Literal["fasta"] = "fasta"
    labels: str = ""
    """Parallel FASTA whose records hold one label per residue (or the label of the whole protein); its headers give the split."""
    mask: str = ""
    """Parallel FASTA whose records hold 1 for residues to be scored and 0 for the others."""
    key: str = "TARGET"
    """Name of the header's label, as in TARGET=nucleus."""
    word: int | None = Field(None, ge=0)
    """0-based word of the header that is the label, where the header has no keys; 0 is the identifier."""
    pattern: str = ""
    """Regular expression whose first group is the label inside the header's word or value; no match: no label."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            n_groups = re.compile(value).groups
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        if value and n_groups != 1:
            raise ValueError(f"needs exactly one group in brackets, which is the label; it has {n_groups}")
        return value

    def read(self, context: ReadContext, report: SequenceReport) -> RawSet:
        path = located(context.folder, self.path)
        records = read_records(path, report)
        side = _by_name(located(context.folder, self.labels), report) if self.labels else None
        masks = _by_name(located(context.folder, self.mask), report) if self.mask else None
        if side is not None or masks is not None:
            _refuse_repeats(path, records)
        found = RawSet(path)
        for record in records:
            keys = header_keys(record.header)
            labelled = record
            label: str | None
            if side is not None:
                beside = side.pop(record.name, None)
                if beside is None:
                    report.skip(path, record.line, record.name, "no label", f"not in {self.labels}")
                    continue
                labelled = beside
                keys = header_keys(beside.header)
                label = beside.text.decode("latin-1") or self._label(beside, keys)
            else:
                label = self._label(record, keys)
            mask = keys.get("MASK")
            if masks is not None:
                beside = masks.pop(record.name, None)
                mask = beside.text.decode("latin-1") if beside is not None else mask
            split = split_of(keys.get("SET", ""), keys.get("VALIDATION", ""), f"{path}:{labelled.line}: {record.name}")
            found.add(record.name, record.text, record.line, label, split, mask)
        _report_unused(side, self.labels, self.path, report)
        return found

    def _label(self, record: FastaRecord, keys: dict[str, str]) -> str | None:
        if self.word is None:
            text = keys.get(self.key.upper())
        else:
            words = record.header.split()
            text = words[self.word] if self.word < len(words) else None
        if text is None or not self.pattern:
            return text
        match = re.search(self.pattern, text)
        return match.group(1) if match else None


def read_records(path: str, report: SequenceReport) -> list[FastaRecord]:
    """Every record of a FASTA file as written, without cleaning.

    Raises
    ------
    SequenceError
        The file cannot be read or is not FASTA.
    """
    records: list[FastaRecord] = []
    for raw in cut_blocks(ByteSource(path).chunks(), path):
        block = parse_block(raw, path, report)
        columns = (block.identifiers.to_list(), block.headers.to_list(), block.residues.to_list(), block.lines.tolist())
        for name, header, text, line in zip(*columns, strict=True):
            records.append(FastaRecord(name.decode(), header.decode(), text, line))
    return records


def header_keys(header: str) -> dict[str, str]:
    """KEY=value words of a header, keys in capitals."""
    if "=" not in header:
        return {}
    return {key.upper(): value for key, value in _KEY_VALUE.findall(header)}


def _by_name(path: str, report: SequenceReport) -> dict[str, FastaRecord]:
    records = read_records(path, report)
    _refuse_repeats(path, records)
    return {record.name: record for record in records}


def _refuse_repeats(path: str, records: list[FastaRecord]) -> None:
    lines: dict[str, int] = {}
    for record in records:
        before = lines.setdefault(record.name, record.line)
        if before != record.line:
            raise SequenceError(
                f"{path}:{record.line}: {record.name}: the identifier also stands at line {before}; files that are joined "
                "by identifier need each only once"
            )


def _report_unused(side: dict[str, FastaRecord] | None, labels: str, path: str, report: SequenceReport) -> None:
    if side:
        first = next(iter(side))
        report.warn(f"{labels}: {len(side):,} records have no sequence in {path} (the first: {first})")
