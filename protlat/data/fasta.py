"""FASTA in large blocks: cut at record borders, split by numpy, cleaned by a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from protlat.data.compression import ByteSource
from protlat.data.policies import SequencePolicy, clean_block, records_of, warn_if_nucleotides
from protlat.data.records import RecordBlock, SequenceRecord, SequenceReport, Texts
from protlat.errors import SequenceError

# Larger blocks fall out of the processor cache between passes.
BLOCK_BYTES = 1 << 20
# A record is held whole in memory; longer ones are left out and reported. Titin has 36 kB.
MAX_RECORD_BYTES = 1 << 27
MAX_HEADER_BYTES = 1 << 16
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class RawBlock:
    """Bytes of a FASTA file that start at a record border, except that the first block may have text before it.

    Attributes
    ----------
    data : bytes
    first_line_1based : int
    index : int
        Number of the block in its file.
    oversized : tuple of (int, bytes)
        Line and start of records before this block that were over `MAX_RECORD_BYTES`.
    """

    data: bytes
    first_line_1based: int
    index: int
    oversized: tuple[tuple[int, bytes], ...] = ()


def cut_blocks(
    chunks: Iterable[bytes], path: str, block_bytes: int = BLOCK_BYTES, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[RawBlock]:
    """Cut a byte stream into blocks of whole records.

    The blocks depend on `block_bytes` and the bytes alone, not on how the stream was chunked.

    Raises
    ------
    SequenceError
        The stream is UTF-16, binary, empty of ``>`` lines, or FASTQ.
    """
    held = bytearray()
    line, index = 1, 0
    first_header = -1  # place of the first header in `held`: no block may end before it
    searched = 0
    oversized: list[tuple[int, bytes]] = []
    discarding = checked = False
    for chunk in chunks:
        held += chunk
        if not checked and len(held) >= 4096:
            _check_start(held, path)
            checked = True
        while len(held) > block_bytes:
            if first_header < 0:
                first_header = _first_header(held, path, max_record_bytes)
            end = -1 if discarding or first_header < 0 else _last_border(held, first_header, block_bytes)
            if end < 0 and first_header >= 0:
                end = _next_border(held, max(searched, first_header))
            if end > max_record_bytes and not discarding:
                oversized.append((line, bytes(held[:200])))
                discarding = True
            if end < 0:
                searched = max(len(held) - 2, 0)
                if len(held) > max_record_bytes and not discarding and first_header >= 0:
                    oversized.append((line, bytes(held[:200])))
                    discarding = True
                if discarding:
                    # The last bytes stay, so that a border or a Windows line end is never split.
                    line += _count_lines(held[:-2]) - int(held.endswith(b"\n", 0, -1) and held.endswith(b"\r", 0, -2))
                    held, searched, first_header = held[-2:], 0, 0
                break
            with memoryview(held) as view:
                data = bytes(view[:end])
            del held[:end]
            searched = first_header = 0
            if not discarding:
                yield RawBlock(data, line, index, tuple(oversized))
                oversized, index = [], index + 1
            discarding = False
            line += _count_lines(data)
    if not checked:
        _check_start(held, path)
    if discarding:
        end = _next_border(held, 0)
        dropped, held = (held, bytearray()) if end < 0 else (held[:end], held[end:])
        line += _count_lines(dropped)
    if held or oversized or index == 0:
        yield RawBlock(bytes(held), line, index, tuple(oversized))


def _first_header(held: bytearray, path: str, limit: int) -> int:
    start = len(_UTF8_BOM) if held.startswith(_UTF8_BOM) else 0
    place = start if held[start : start + 1] == b">" else _next_border(held, start)
    if place < 0 and len(held) > limit:
        raise SequenceError(f"{path}: not FASTA: no line starts with '>' in the first {len(held):,} bytes")
    return place


def _check_start(held: bytearray, path: str) -> None:
    start = bytes(held[:4096])
    if start.startswith(_UTF16_BOMS):
        raise SequenceError(f"{path}: UTF-16 text; save it as plain text (UTF-8 or ASCII)")
    if held.startswith(_UTF8_BOM):
        return
    shown = start[:40].decode("latin-1")
    stripped = start.lstrip()
    if stripped.startswith(b"@") and b"\n+" in start:
        raise SequenceError(
            f"{path}: FASTQ, sequencing reads with qualities; protlat reads proteins: translate them first"
        )
    if not stripped.startswith((b">", b";")) and start.count(b"\0") * 20 > len(start):
        raise SequenceError(f"{path}: not FASTA but a binary file (starts with {shown!r})")


def _last_border(held: bytearray, start: int, limit: int) -> int:
    """Last place above `start` and up to `limit` where a record begins after a line end, -1 if there is none."""
    place = held.rfind(b"\n>", start, limit + 1)
    # Old-Mac borders matter only above that one, so that a file without them is not searched whole.
    return max(place, held.rfind(b"\r>", max(place, start), limit + 1)) + 1 or -1


def _next_border(held: bytearray, start: int) -> int:
    places = [place for place in (held.find(b"\n>", start), held.find(b"\r>", start)) if place >= 0]
    return min(places) + 1 if places else -1


def _count_lines(data: bytes | bytearray) -> int:
    n_lines = data.count(b"\n")
    if b"\r" in data:
        n_lines += data.count(b"\r") - data.count(b"\r\n")
    return n_lines


def parse_block(raw: RawBlock, path: str, report: SequenceReport) -> RecordBlock:
    """Split a block into records: header, first word, residues as written without line ends.

    Time is linear in the bytes; residues are copied twice.
    """
    data = raw.data
    if raw.index == 0 and data.startswith(_UTF8_BOM):
        data = data[len(_UTF8_BOM) :]
        report.changes["byte order mark dropped"] += 1
    if b"\r" in data:
        n_crlf = data.count(b"\r\n")
        report.changes["Windows line ends"] += n_crlf
        report.changes["old-Mac line ends"] += data.count(b"\r") - n_crlf
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line, start in raw.oversized:
        name = start[1:].split(maxsplit=1)[:1] or [b""]
        report.n_records += 1
        report.skip(path, line, name[0][:80].decode("latin-1"), "record too large", f"over {MAX_RECORD_BYTES:,} bytes")
    if data and not data.endswith(b"\n"):
        data += b"\n"
    flat = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(flat == 10)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else np.zeros(0, np.int64)
    first = flat[starts]
    header_lines = np.flatnonzero(first == ord(">"))
    comments = first == ord(";")
    lengths = ends - starts
    _report_preamble(data, starts, ends, header_lines, comments, raw, path, report)
    body = lengths.copy()
    body[header_lines] = 0
    n_comments = int(np.count_nonzero(comments))
    if n_comments:
        body[comments] = 0
        report.changes["comment lines dropped"] += n_comments
    before = np.concatenate(([0], np.cumsum(body)))
    first_body = int(before[header_lines[0]]) if len(header_lines) else 0
    offsets = np.append(before[header_lines], before[-1]) - first_body if len(header_lines) else np.zeros(1, np.int64)
    if n_comments:
        wanted = np.flatnonzero(body > 0)
        wanted = wanted[wanted > header_lines[0]] if len(header_lines) else wanted[:0]
        joined = Texts.gather(data, starts[wanted], ends[wanted]).data
    else:
        next_headers = np.append(starts[header_lines[1:]], len(data)) if len(header_lines) else header_lines
        joined = Texts.gather(data, ends[header_lines], next_headers).data.translate(None, b"\n")
    headers, identifiers = _headers(data, starts[header_lines] + 1, ends[header_lines], report)
    lines = raw.first_line_1based + header_lines
    identifiers = _name_unnamed(identifiers, lines, report)
    return RecordBlock(path, identifiers, headers, Texts(joined, offsets), lines)


def _report_preamble(
    data: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    header_lines: np.ndarray,
    comments: np.ndarray,
    raw: RawBlock,
    path: str,
    report: SequenceReport,
) -> None:
    """Text before the first header belongs to no record: it is left out and told."""
    stop = int(header_lines[0]) if len(header_lines) else len(starts)
    texts = [data[starts[i] : ends[i]].strip() for i in range(min(stop, 1000)) if not comments[i]]
    filled = [text for text in texts if text]
    if not filled:
        return
    if raw.index == 0 and not len(header_lines):
        shown = filled[0][:40].decode("latin-1")
        raise SequenceError(f"{path}: not FASTA: no line starts with '>' (the text starts with {shown!r})")
    report.changes["lines before the first header"] += len(filled)
    shown = filled[0][:60].decode("latin-1")
    report.skip(
        path, raw.first_line_1based, "", "text before the first header", f"{len(filled)} lines, starts with {shown!r}"
    )


def _headers(data: bytes, starts: np.ndarray, ends: np.ndarray, report: SequenceReport) -> tuple[Texts, Texts]:
    long = ends - starts > MAX_HEADER_BYTES
    n_long = int(np.count_nonzero(long))
    if n_long:
        report.changes["headers cut at 65,536 bytes"] += n_long
        ends = np.minimum(ends, starts + MAX_HEADER_BYTES)
    headers = Texts.gather(data, starts, ends)
    if not headers.data.isascii():
        headers = _as_utf8(headers, report)
    flat = np.frombuffer(headers.data, dtype=np.uint8)
    at_start = flat[headers.offsets[:-1][headers.lengths > 0]]
    if np.isin(at_start, (32, 9)).any():
        headers = Texts.of([header.lstrip() for header in headers.to_list()])
        flat = np.frombuffer(headers.data, dtype=np.uint8)
    # The first blank at or after each header's start, or the header's end.
    blanks = np.append(np.flatnonzero((flat == 32) | (flat == 9)), len(flat))
    word_ends = np.minimum(blanks[np.searchsorted(blanks, headers.offsets[:-1])], headers.offsets[1:])
    return headers, Texts.gather(headers.data, headers.offsets[:-1], word_ends)


def _as_utf8(headers: Texts, report: SequenceReport) -> Texts:
    """Keep non-ASCII headers: as UTF-8 where they are, else read as Latin-1, which has a character for every byte."""
    items = headers.to_list()
    for index, item in enumerate(items):
        if item.isascii():
            continue
        report.changes["headers with non-ASCII characters"] += 1
        try:
            item.decode()
        except UnicodeDecodeError:
            # A header cut at the bound may end inside a character; only a header wrong before that is Latin-1.
            cut = item.decode(errors="ignore").encode()
            whole = len(item) == MAX_HEADER_BYTES and len(item) - len(cut) < 4 and item.startswith(cut)
            items[index] = cut if whole else item.decode("latin-1").encode()
    return Texts.of(items)


def _name_unnamed(identifiers: Texts, lines: np.ndarray, report: SequenceReport) -> Texts:
    empty = np.flatnonzero(identifiers.lengths == 0)
    if not len(empty):
        return identifiers
    report.changes["records without identifier named by line"] += len(empty)
    items = identifiers.to_list()
    for index in empty.tolist():
        items[index] = f"unnamed-{lines[index]}".encode()
    return Texts.of(items)


def stream_blocks(
    path: str, policy: SequencePolicy, report: SequenceReport, block_bytes: int = BLOCK_BYTES
) -> Iterator[RecordBlock]:
    """Cleaned blocks of one FASTA file, in order.

    Raises
    ------
    SequenceError
        The file cannot be read or is not FASTA, or a record breaks a policy that says ``error``.
    """
    for raw in cut_blocks(ByteSource(path).chunks(), path, block_bytes):
        block = parse_block(raw, path, report)
        if raw.index == 0:
            warn_if_nucleotides(block, report)
        yield clean_block(block, policy, report)


def stream_sequences(
    paths: Sequence[str],
    policy: SequencePolicy | None = None,
    report: SequenceReport | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[SequenceRecord]:
    """Cleaned records of FASTA files (plain, gzip, bzip2, xz, zstd; ``-`` is standard input), in order.

    Memory is bounded by a few times `block_bytes`, or by the longest record.

    Parameters
    ----------
    paths : sequence of str
    policy : SequencePolicy, optional
        What to do with gaps, unknown letters and stops; the defaults when None.
    report : SequenceReport, optional
        Receives the counts, the records left out and the warnings.
    block_bytes : int
        Size of a read; the records do not depend on it.

    Raises
    ------
    SequenceError
        A file cannot be read or is not FASTA, or a record breaks a policy that says ``error``.

    Examples
    --------
    >>> from protlat.data.records import SequenceReport
    >>> report = SequenceReport()
    >>> records = list(stream_sequences(["proteins.fasta"], report=report))  # doctest: +SKIP
    """
    policy = policy or SequencePolicy()
    report = report if report is not None else SequenceReport()
    for path in paths:
        for block in stream_blocks(str(path), policy, report, block_bytes):
            yield from records_of(block)
