"""FASTA reading: blocks against a plain line-by-line reader, and every awkward file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protlat.data import fasta
from protlat.data.fasta import cut_blocks, parse_block, stream_sequences
from protlat.data.policies import SequencePolicy
from protlat.data.records import SequenceReport
from protlat.errors import SequenceError

FILES = Path(__file__).parents[1] / "data_files" / "fasta"


def plain_reader(data: bytes) -> list[tuple[bytes, bytes, int]]:
    """Header, residues and line of every record, one line at a time."""
    records: list[list] = []
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.startswith(b">"):
            records.append([line[1:].lstrip(b" \t"), b"", number])
        elif records and not line.startswith(b";"):
            records[-1][1] += line
    return [tuple(record) for record in records]


def read_raw(data: bytes, block_bytes: int, chunk_bytes: int) -> list[tuple[bytes, bytes, int]]:
    chunks = (data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes))
    rows = []
    for raw in cut_blocks(chunks, "x.fasta", block_bytes):
        block = parse_block(raw, "x.fasta", SequenceReport())
        rows += zip(block.headers.to_list(), block.residues.to_list(), block.lines.tolist(), strict=True)
    return rows


line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
header_lines = st.binary(max_size=12).map(lambda b: b">" + bytes(c for c in b if 32 <= c < 127 or c == 9))
residue_lines = st.text("ACDEFGHIKLMNPQRSTVWYXUacd*", max_size=30).map(str.encode)
odd_lines = st.sampled_from([b"", b" ", b"; note", b";", b"<mask>A", b"AC<ma", b"sk>DE", b"10 ACD 20", b"A>C", b"MKV*"])


@st.composite
def fasta_bytes(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.one_of(header_lines, residue_lines, odd_lines), max_size=25))
    data = b"".join(line + draw(line_ends) for line in [b">first one", *lines])
    if draw(st.booleans()):
        data = data.rstrip(b"\r\n")
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + data


@settings(max_examples=300, deadline=None)
@given(fasta_bytes(), st.integers(16, 200), st.integers(1, 64))
def test_blocks_equal_a_line_by_line_reader(data: bytes, block_bytes: int, chunk_bytes: int) -> None:
    assert read_raw(data, block_bytes, chunk_bytes) == plain_reader(data)


@settings(max_examples=150, deadline=None)
@given(data=fasta_bytes(), block_bytes=st.integers(16, 120))
def test_records_and_counts_do_not_depend_on_the_block_size(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, block_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.fasta"
    path.write_bytes(data)
    small, large = SequenceReport(), SequenceReport()
    policy = SequencePolicy(gaps="strip")
    assert list(stream_sequences([str(path)], policy, small, block_bytes)) == list(
        stream_sequences([str(path)], policy, large)
    )
    assert (+small.changes, small.unknown, small.reasons, small.skipped) == (
        +large.changes,
        large.unknown,
        large.reasons,
        large.skipped,
    )


def read(tmp_path: Path, data: bytes, **policy: str) -> tuple[dict[str, bytes], SequenceReport]:
    path = tmp_path / "x.fasta"
    path.write_bytes(data)
    report = SequenceReport()
    records = stream_sequences([str(path)], SequencePolicy(**policy), report)
    return {record.identifier: record.residues for record in records}, report


def test_every_change_is_counted(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf>a one\r\nMKvl\r\n;note\r\nUZ*\r\n>b\r\nA*C<mask>D\r\n>c\r\n\r\n>d\r\n 1 MK 5\tV**\r\n"
    found, report = read(tmp_path, data)
    assert found == {"a": b"MKVLXX", "b": b"AXC<mask>D", "d": b"MKV"}
    assert dict(+report.changes) == {
        "byte order mark dropped": 1,
        "Windows line ends": 10,
        "comment lines dropped": 1,
        "lower-case residues made upper-case": 2,
        "records with lower-case residues": 1,
        "unknown residues mapped to X": 2,
        "terminal * dropped": 3,
        "internal * mapped to X": 1,
        "<mask> tokens honoured": 1,
        "blanks inside sequences dropped": 4,
        "digits inside sequences dropped": 2,
    }
    assert report.unknown == {"U": 1, "Z": 1}
    assert report.reasons == {"empty record": 1}
    assert [(s.line_1based, s.identifier) for s in report.skipped] == [(7, "c")]
    assert (report.n_records, report.n_kept, report.n_residues_kept) == (4, 3, 14)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("map", b"AXXXXXC"), ("keep", b"AUZOBXC")],
)
def test_unknown_letters(tmp_path: Path, policy: str, expected: bytes) -> None:
    found, report = read(tmp_path, b">a\nAUZOBJC\n", unknown=policy)
    assert found == {"a": expected}
    assert report.unknown == dict.fromkeys("UZOBJ", 1)


def test_unknown_letters_can_stop_or_skip(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match=r"x\.fasta:3: b: unknown residue U at position 2"):
        read(tmp_path, b">a\nAC\n>b\nAU\n", unknown="error")
    found, report = read(tmp_path, b">a\nAC\n>b\nAU\n", unknown="skip")
    assert list(found) == ["a"]
    assert report.skipped[0].reason == "unknown residue: U at position 2"


def test_gaps(tmp_path: Path) -> None:
    data = b">a\nA-C.D\n>b\nAC\n"
    with pytest.raises(SequenceError, match=r"x\.fasta:1: a: gap - at position 2; --gaps strip"):
        read(tmp_path, data)
    assert read(tmp_path, data, gaps="strip")[0] == {"a": b"ACD", "b": b"AC"}
    assert read(tmp_path, data, gaps="skip")[0] == {"b": b"AC"}
    assert read(tmp_path, b">a\nAC*--\n", gaps="strip")[0] == {"a": b"AC"}


def test_internal_stops(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match=r"internal stop \* at position 2"):
        read(tmp_path, b">a\nA*C\n", stops="error")
    assert read(tmp_path, b">a\nA*C\n>b\nAC*\n", stops="skip")[0] == {"b": b"AC"}


@pytest.mark.parametrize(("bad", "shown"), [(b"\0", "byte 0x00"), (b"?", r"\?"), (b"\xc3", "byte 0xC3"), (b"#", "#")])
def test_characters_that_are_no_residues_leave_the_record_out(tmp_path: Path, bad: bytes, shown: str) -> None:
    found, report = read(tmp_path, b">a\nAC\n>b\nMK" + bad + b"V\n>c\nDE\n")
    assert list(found) == ["a", "c"]
    (skipped,) = report.skipped
    assert skipped.line_1based == 3
    assert skipped.reason.startswith("character that is no residue")


def test_mask_is_found_across_line_ends_and_in_any_case(tmp_path: Path) -> None:
    found, _ = read(tmp_path, b">a\nA<ma\nsk>C\n>b\n<MASK><mask>\n>c\nAC<ma\n>d\nsk>\n")
    assert found == {"a": b"A<mask>C", "b": b"<mask><mask>"}


def test_headers(tmp_path: Path) -> None:
    data = (
        b">sp|P1|N_X Protein one\n>> two\nAC\n> spaced id\nAC\n>\nAC\n>caf\xc3\xa9 x\nAC\n>na\xefve\nAC\n>tab\tid\nAC\n"
    )
    path = tmp_path / "x.fasta"
    path.write_bytes(data.replace(b"one\n", b"one\nMK\n"))
    report = SequenceReport()
    records = list(stream_sequences([str(path)], report=report))
    assert [r.identifier for r in records] == ["sp|P1|N_X", ">", "spaced", "unnamed-7", "café", "naïve", "tab"]
    assert records[0].header == "sp|P1|N_X Protein one"
    assert records[2].source == f"{path}:5"
    assert report.changes["headers with non-ASCII characters"] == 2
    assert report.changes["records without identifier named by line"] == 1


def test_very_long_header_is_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_bytes(b">a " + "é".encode() * 50_000 + b"\nAC\n")
    report = SequenceReport()
    (record,) = stream_sequences([str(path)], report=report)
    assert len(record.header.encode()) <= fasta.MAX_HEADER_BYTES
    assert set(record.header[2:]) == {"é"}
    assert report.changes["headers cut at 65,536 bytes"] == 1


def test_text_before_the_first_header_is_told(tmp_path: Path) -> None:
    found, report = read(tmp_path, b"Downloaded today\n\n>a\nAC\n")
    assert list(found) == ["a"]
    assert report.skipped[0].reason == "text before the first header: 1 lines, starts with 'Downloaded today'"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello world\nMKV\n", "not FASTA: no line starts with '>'"),
        (b"\x89HDF\r\n\x1a\n" + bytes(4000), "binary file"),
        (b"\xff\xfe>\0a\0", "UTF-16"),
        (b"@read1\nACGT\n+\nIIII\n", "FASTQ"),
    ],
)
def test_files_that_are_not_fasta(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(SequenceError, match=message):
        read(tmp_path, data)


def test_empty_and_comment_only_files_have_no_records(tmp_path: Path) -> None:
    assert read(tmp_path, b"")[0] == {}
    assert read(tmp_path, b";only\n; comments\n")[0] == {}


def test_nucleotides_raise_a_warning_with_the_evidence(tmp_path: Path) -> None:
    _, report = read(tmp_path, b">a\n" + b"ACGTTGCAAN" * 20 + b"\n")
    assert "100.0 % of the first 200 letters (1 records) are A C G T U N" in report.warnings[0]
    assert read(tmp_path, b">a\n" + b"MKVLAAGIVGLLLAQWYERP" * 10 + b"\n")[1].warnings == []


def test_a_record_over_the_limit_is_left_out_and_told() -> None:
    data = b">a\nAC\n>big\n" + b"ACDEFGHIKL\r\n" * 40 + b">c\nAC\n>d\nAC\n"
    expected = [row for row in plain_reader(data) if row[0] != b"big"]
    for chunk_bytes in (1, 7, 50, 1000):
        report = SequenceReport()
        rows = []
        chunks = [data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes)]
        for raw in cut_blocks(chunks, "x", 16, max_record_bytes=200):
            block = parse_block(raw, "x", report)
            rows += zip(block.headers.to_list(), block.residues.to_list(), block.lines.tolist(), strict=True)
        assert rows == expected
        assert [(s.line_1based, s.identifier) for s in report.skipped] == [(3, "big")]


def test_a_short_record_behind_a_large_one_after_comments_is_kept() -> None:
    data = b";" + b"c" * 300 + b"\n>big\n" + b"A" * 1000 + b"\n>c\nAC\n>d\nAC\n" + b">e\nACD\n" * 20
    expected = [row for row in plain_reader(data) if row[0] != b"big"]
    rows = []
    for start in range(1, 60):
        report = SequenceReport()
        chunks = [data[:start], *(data[i : i + 40] for i in range(start, len(data), 40))]
        rows = []
        for raw in cut_blocks(chunks, "x", 16, max_record_bytes=600):
            block = parse_block(raw, "x", report)
            rows += zip(block.headers.to_list(), block.residues.to_list(), block.lines.tolist(), strict=True)
        assert rows == expected


def test_real_awkward_files() -> None:
    report = SequenceReport()
    names = ["windows_line_ends.fasta", "comment_line.fasta", "plain.fasta"]
    records = list(stream_sequences([str(FILES / name) for name in names], report=report))
    assert report.n_records == len(records) == 23
    assert report.n_residues_kept == 1937 + 792 + 2265
    assert report.changes["Windows line ends"] == 32
    assert report.changes["comment lines dropped"] == 1
