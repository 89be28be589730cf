"""Proteins from Swiss-Prot, GenBank and EMBL flat files, parsed by Biopython."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from protlat.data.compression import ByteSource
from protlat.data.policies import from_sequences
from protlat.data.records import RecordBlock
from protlat.errors import SequenceError

from .config import PrepConfig
from .sources import Source

log = logging.getLogger(__name__)
_PARSERS = {"swissprot": "swiss", "genbank": "genbank", "embl": "embl"}


class _Lines(io.TextIOBase):
    """Chunks of bytes as a text file that counts the lines taken from it."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._held = chunks, b""
        self.n_lines = 0

    def readline(self, size: int | None = -1) -> str:  # type: ignore[override]  # typeshed's base is for bytes
        end = self._held.find(b"\n")
        while end < 0:
            chunk = next(self._chunks, b"")
            if not chunk:
                end = len(self._held) - 1
                break
            self._held += chunk
            end = self._held.find(b"\n")
        line, self._held = self._held[: end + 1], self._held[end + 1 :]
        self.n_lines += bool(line)
        # Old flat files are Latin-1 in places; no sequence depends on it.
        return line.decode("latin-1").replace("\r\n", "\n")

    def __next__(self) -> str:  # type: ignore[override]
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def read(self, size: int | None = -1) -> str:
        if size == 0:
            return ""  # Biopython reads nothing to tell text from bytes
        return "".join(self)


def read_rich(source: Source, stream: ByteSource, config: PrepConfig) -> Iterator[RecordBlock]:
    """Blocks of proteins: whole entries, or the translated coding regions of nucleotide entries.

    Identifiers are the accession (Swiss-Prot, protein entries) or, for a coding region, its ``protein_id``, else its
    ``locus_tag``, else the entry and place.

    Raises
    ------
    SequenceError
        The file is not of its format.
    """
    from Bio import SeqIO

    handle = _Lines(stream.chunks())
    names: list[str] = []
    headers: list[str] = []
    residues: list[bytes] = []
    lines: list[int] = []
    size, n_blocks = 0, 0
    entries = SeqIO.parse(handle, _PARSERS[source.format])
    while True:
        line = handle.n_lines + 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                entry = next(entries, None)
            except SequenceError:
                raise
            except (ValueError, AssertionError, KeyError, IndexError) as error:
                raise SequenceError(
                    f"{source.path}:{handle.n_lines}: not readable as {source.format}: {error or type(error).__name__}"
                ) from None
        for warning in caught:
            log.warning("%s:%d: %s", source.path, line, warning.message)
        if entry is None:
            break
        for name, header, sequence in proteins_of(entry, source.format):
            names.append(name)
            headers.append(header)
            residues.append(sequence.encode("latin-1", errors="replace"))
            lines.append(line)
            size += len(sequence)
        if size >= config.block_bytes:
            yield from_sequences(source.path, names, headers, residues, lines)
            names, headers, residues, lines, size = [], [], [], [], 0
            n_blocks += 1
    if not handle.n_lines or (not names and not n_blocks):
        raise SequenceError(f"{source.path}: no protein found as {source.format}")
    if names:
        yield from_sequences(source.path, names, headers, residues, lines)


def proteins_of(entry: Any, file_format: str) -> Iterator[tuple[str, str, str]]:
    """Identifier, header and residues of every protein in a Biopython record.

    A coding region without ``/translation`` (a pseudogene, mostly) has empty residues, so that it is reported.
    """
    organism = str(entry.annotations.get("organism", "")).strip()
    if file_format == "swissprot" or entry.annotations.get("molecule_type") == "protein":
        name = entry.name if entry.name not in ("", "<unknown name>", entry.id) else ""
        description = " ".join(str(entry.description).split())
        parts = [entry.id, name, description, f"OS={organism}" if organism else ""]
        yield entry.id, " ".join(part for part in parts if part), str(entry.seq)
        return
    for feature in entry.features:
        if feature.type != "CDS":
            continue
        place = f"{entry.id}:{int(feature.location.start) + 1}-{int(feature.location.end)}"
        found = [feature.qualifiers[key][0] for key in ("protein_id", "locus_tag") if feature.qualifiers.get(key)]
        name = "_".join((found[0] if found else place).split())
        product = feature.qualifiers.get("product", feature.qualifiers.get("gene", [""]))[0]
        header = " ".join(part for part in (name, product, f"[{organism}]" if organism else "", place) if part)
        yield name, header, "".join(feature.qualifiers.get("translation", [""]))
