"""Documents, JSON lines and the flat files of the sequence databases."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard

from protlat.alphabet import BYTES, PROTEIN
from protlat.data.shards import Manifest, ShardReader
from protlat.data_prep.config import PrepConfig
from protlat.data_prep.flow import run
from protlat.errors import ConfigError, SequenceError

FILES = Path(__file__).parents[1] / "data_files"


def prep(output: Path, *inputs: Path, **settings: Any) -> tuple[Manifest, ShardReader]:
    manifest = run(PrepConfig.parse({"inputs": [str(path) for path in inputs], "output": str(output)} | settings))
    return manifest, ShardReader(output, "train")


def texts(reader: ShardReader) -> list[str]:
    return [reader.alphabet.decode(reader.tokens(i)) for i in range(len(reader))]


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = FILES / "documents" / "little_dorrit_start.txt"
    manifest, reader = prep(tmp_path / "out", path)
    assert reader.alphabet is BYTES
    assert texts(reader) == [path.read_bytes().decode()]
    assert reader.id(0) == path.name
    assert manifest.sources[0].format == "text"


def test_each_line_can_be_a_document(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\r\nsecond\nthird")
    _, reader = prep(tmp_path / "out", path, document="line")
    assert texts(reader) == ["first", "second", "third"]
    assert [reader.id(i) for i in range(3)] == ["notes.md:1", "notes.md:3", "notes.md:4"]


def test_json_lines(tmp_path: Path) -> None:
    path = FILES / "documents" / "three.jsonl"
    _, reader = prep(tmp_path / "out", path, field="text", id_field="name")
    assert [reader.id(i) for i in range(3)] == ["one", "two", "three"]
    assert texts(reader)[1] == "Ein zweites, mit Umläuten: äöü."
    assert int((reader.tokens(2) == BYTES.mask_id).sum()) == 1


@pytest.mark.parametrize(
    ("line", "settings", "message"),
    [
        ("{", {"field": "text"}, r"a\.jsonl:1: not JSON"),
        ("[1]", {"field": "text"}, r"expected a JSON object, found list"),
        ('{"body": "x"}', {"field": "text"}, r"no key 'text'; it has 'body'"),
        ('{"text": 5}', {"field": "text"}, r"key 'text' holds int, expected text"),
    ],
)
def test_bad_json_lines(tmp_path: Path, line: str, settings: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SequenceError, match=message):
        prep(tmp_path / "out", path, **settings)
    assert not (tmp_path / "out").exists()


def test_json_lines_need_a_field(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--field"):
        prep(tmp_path / "out", FILES / "documents" / "three.jsonl")


def test_proteins_in_json_lines_follow_the_policies(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"seq": "mkvU*"}))
    manifest, reader = prep(tmp_path / "out", path, field="seq", alphabet="protein")
    assert texts(reader) == ["MKVX"]
    assert manifest.account["unknown_residues"] == {"U": 1}


def test_mixing_documents_and_sequences_needs_a_named_alphabet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name one --alphabet"):
        prep(tmp_path / "out", FILES / "documents" / "three.jsonl", FILES / "fasta" / "plain.fasta", field="text")


def test_a_tokenizer_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    specials = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    vocabulary = {token: i for i, token in enumerate([*specials, "first", "second"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("first second third\n")
    (tmp_path / "b.txt").write_bytes(b"caf\xe9 first")
    manifest, reader = prep(
        tmp_path / "out", tmp_path / "a.txt", tmp_path / "b.txt", alphabet=str(tmp_path / "tokenizer.json")
    )
    assert reader.tokens(0).tolist() == [5, 6, 3]
    assert manifest.account["skipped_by_reason"] == {"not UTF-8 text": 1}


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_swiss_prot(tmp_path: Path, compress: Any) -> None:
    # The name tells neither format nor compression.
    path = tmp_path / "entries"
    path.write_bytes(compress((FILES / "rich" / "two_entries.dat").read_bytes()))
    manifest, reader = prep(tmp_path / "out", path)
    assert [reader.id(i) for i in range(2)] == ["P00001", "Q00002"]
    assert reader.header(0).startswith("P00001 AAAA_ECOLI RecName: Full=Made-up protein A")
    assert PROTEIN.decode(reader.tokens(0)) == "MKVLAAGIVGLLLAQWYERPXNDC"
    assert manifest.sources[0].format == "swissprot"
    assert manifest.sources[0].compression != "none"


@pytest.mark.parametrize("file_format", ["genbank", "embl"])
def test_coding_regions(tmp_path: Path, file_format: str) -> None:
    from Bio import SeqIO
    from Bio.Seq import Seq
    from Bio.SeqFeature import SeqFeature, SimpleLocation
    from Bio.SeqRecord import SeqRecord

    features = [
        SeqFeature(SimpleLocation(0, 9, 1), "CDS", qualifiers={"protein_id": ["WP_1.1"], "product": ["kinase"], "translation": ["MKV"]}),
        SeqFeature(SimpleLocation(9, 18, -1), "CDS", qualifiers={"locus_tag": ["b0002"], "translation": ["MSTC"]}),
        SeqFeature(SimpleLocation(18, 27, 1), "CDS", qualifiers={"locus_tag": ["b0003"], "pseudo": [""]}),
        SeqFeature(SimpleLocation(0, 30, 1), "gene", qualifiers={"gene": ["x"]}),
    ]  # fmt: skip
    annotations = {"molecule_type": "DNA", "organism": "Escherichia coli"}
    record = SeqRecord(Seq("ATG" * 20), id="NC_1.1", name="NC_1", features=features, annotations=annotations)
    path = tmp_path / "genome"
    SeqIO.write([record], path, file_format)
    manifest, reader = prep(tmp_path / "out", path)
    assert manifest.sources[0].format == file_format
    assert [(reader.id(i), PROTEIN.decode(reader.tokens(i))) for i in range(2)] == [
        ("WP_1.1", "MKV"),
        ("b0002", "MSTC"),
    ]
    assert reader.header(0) == "WP_1.1 kinase [Escherichia coli] NC_1.1:1-9"
    assert manifest.account["skipped_by_reason"] == {"empty record": 1}


def test_a_damaged_flat_file(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    path.write_text((FILES / "rich" / "two_entries.dat").read_text()[:900])
    with pytest.raises(SequenceError, match=r"a\.dat:\d+: not readable as swissprot"):
        prep(tmp_path / "out", path)


def test_a_pipe_by_name_is_refused(tmp_path: Path) -> None:
    # The look at its format would swallow the first megabyte.
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SequenceError, match="pipe: a pipe or device, which can be read only once"):
        prep(tmp_path / "out", tmp_path / "pipe")


def test_a_file_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\xff.fasta"))
    try:
        path.write_bytes(b">a\nMKT\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(SequenceError, match="not UTF-8"):
        prep(tmp_path / "out", path)


def test_half_surrogates_in_json_identifiers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "abc", "id": "x\\ud800"}\n')
    _, reader = prep(tmp_path / "out", path, field="text", id_field="id")
    assert reader.id(0) == "x?"


def test_json_nested_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("[" * 200_000)
    with pytest.raises(SequenceError, match=r"a\.jsonl:1: (JSON nested too deep|not JSON)"):
        prep(tmp_path / "out", path, field="text")


def test_files_without_records_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text(">a\nMKT\n")
    (tmp_path / "empty.fasta").write_text("")
    manifest, _ = prep(tmp_path / "out", tmp_path / "a.fasta", tmp_path / "empty.fasta")
    assert manifest.warnings == (f"no records in {tmp_path / 'empty.fasta'}",)
    with pytest.raises(SequenceError, match=r"empty\.fasta: no sequence is left to write: 0 read; the input is empty"):
        prep(tmp_path / "none", tmp_path / "empty.fasta")


def test_an_alphabet_that_is_neither_a_name_nor_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text(">a\nMKT\n")
    with pytest.raises(ConfigError, match=r"alphabet dna: expected protein, bytes or the path of a tokenizer\.json"):
        prep(tmp_path / "out", tmp_path / "a.fasta", alphabet="dna")
