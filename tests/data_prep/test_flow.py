"""Prep end to end: every record is accounted for, whatever the policy."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protlat.alphabet import BYTES, PROTEIN
from protlat.data.shards import Manifest, ShardReader
from protlat.data_prep.config import PrepConfig
from protlat.data_prep.flow import run
from protlat.errors import ConfigError, OutputError, SequenceError
from tests.data_prep.helpers import random_fasta, random_protein, write_fasta


def prep(tmp_path: Path, inputs: list[Path] | Path, **settings: Any) -> Manifest:
    files = [str(path) for path in (inputs if isinstance(inputs, list) else [inputs])]
    values = {"inputs": files, "output": str(tmp_path / "out"), "block_bytes": 200, "shard_tokens": 500}
    return run(PrepConfig.parse(values | settings), overwrite=True)


def rows(tmp_path: Path, split: str = "train") -> list[tuple[str, str]]:
    reader = ShardReader(tmp_path / "out", split, verify=True)
    return [(reader.id(i), PROTEIN.decode(reader.tokens(i))) for i in range(len(reader))]


def table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_records_keep_order_and_content(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = {f"r{i} some text": random_protein(rng, 5 + i) for i in range(60)}
    manifest = prep(tmp_path, write_fasta(tmp_path / "a.fa", records))
    assert rows(tmp_path) == [(name.split()[0], sequence) for name, sequence in records.items()]
    assert len(manifest.splits["train"].shards) > 3
    reader = ShardReader(tmp_path / "out", "train")
    assert reader.header(7) == "r7 some text"
    assert reader.lengths.tolist() == [5 + i for i in range(60)]
    assert manifest.account["records_read"] == manifest.account["records_written"] == 60
    assert manifest.account["residues_written"] == sum(map(len, records.values()))


def test_every_record_is_written_skipped_or_duplicate(tmp_path: Path) -> None:
    sequences = [
        ("a", "MKVAA"),
        ("b", "MKVAA"),
        ("c", "MK"),
        ("d", "M" * 50),
        ("e", ""),
        ("f", "MK?A"),
        ("x_1", "MKVLL"),
    ]
    source = write_fasta(tmp_path / "a.fa", sequences)
    manifest = prep(
        tmp_path,
        source,
        min_length=3,
        max_length=20,
        tag_pattern="^([a-z]+)_",
        exclude_tags=["x"],
        policy={"gaps": "strip"},
    )
    account = manifest.account
    assert account["records_written"] == 1
    assert account["duplicate_sequences"] == 1
    assert account["skipped_by_reason"] == {
        "character that is no residue": 1,
        "empty record": 1,
        "excluded tag": 1,
        "too long": 1,
        "too short": 1,
    }
    assert account["records_read"] == 7
    skipped = table(tmp_path / "out" / "skipped.tsv")
    assert skipped[0] == ["file", "line", "identifier", "reason"]
    assert {row[2]: row[3] for row in skipped[1:]} == {
        "c": "too short: 2 < 3",
        "d": "too long: 50 > 20",
        "e": "empty record",
        "f": "character that is no residue: ? at position 3",
        "x_1": "excluded tag: x",
    }
    assert [row[1] for row in skipped[1:] if row[2] == "d"] == ["7"]
    duplicates = table(tmp_path / "out" / "duplicates.tsv")
    assert duplicates[1][1:] == ["3", "b", "a", "train", "train"]


@pytest.mark.parametrize("bucket_rows", [3, 1000])
def test_duplicates_are_found_across_files_and_buckets(tmp_path: Path, bucket_rows: int) -> None:
    rng = np.random.default_rng(1)
    unique = [random_protein(rng, 30) for _ in range(40)]
    drawn = rng.integers(0, 40, 120)
    first = write_fasta(tmp_path / "a.fa", [(f"a{i}", unique[k]) for i, k in enumerate(drawn[:60])])
    second = write_fasta(tmp_path / "b.fa", [(f"b{i}", unique[k].lower()) for i, k in enumerate(drawn[60:])])
    manifest = prep(tmp_path, [first, second], bucket_rows=bucket_rows)
    expected: dict[str, str] = {}
    names = [f"a{i}" for i in range(60)] + [f"b{i}" for i in range(60)]
    for name, k in zip(names, drawn, strict=True):
        expected.setdefault(unique[k], name)
    assert rows(tmp_path) == [(name, sequence) for sequence, name in expected.items()]
    assert manifest.account["duplicate_sequences"] == 120 - len(expected)
    for row in table(tmp_path / "out" / "duplicates.tsv")[1:]:
        assert row[3] == expected[unique[drawn[names.index(row[2])]]]


def test_duplicates_can_be_kept(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "a.fa", [("a", "MKV"), ("b", "MKV")])
    manifest = prep(tmp_path, source, duplicates="keep")
    assert len(rows(tmp_path)) == 2
    assert manifest.account["records_written"] == 2
    assert manifest.account["duplicate_sequences"] == 1


def test_a_held_out_sequence_leaves_train(tmp_path: Path) -> None:
    train = write_fasta(tmp_path / "train.fa", [("a", "MKVAA"), ("b", "MKVCC"), ("c", "MKVDD")])
    valid = write_fasta(tmp_path / "valid.fa", [("v", "MKVAA"), ("w", "MKVEE")])
    test = write_fasta(tmp_path / "test.fa", [("t", "MKVEE"), ("u", "MKVDD")])
    manifest = prep(tmp_path, train, split={"valid": [str(valid)], "test": [str(test)]})
    assert [name for name, _ in rows(tmp_path)] == ["b"]
    assert [name for name, _ in rows(tmp_path, "valid")] == ["v"]
    assert [name for name, _ in rows(tmp_path, "test")] == ["t", "u"]
    assert manifest.account["duplicates_across_splits"] == 3
    assert [s.split for s in manifest.sources] == ["", "valid", "test"]


@pytest.mark.parametrize(("policy", "names"), [("keep", ["a", "a", "b"]), ("skip", ["a", "b"])])
@pytest.mark.parametrize("bucket_rows", [1, 1000])
def test_equal_identifiers(tmp_path: Path, policy: str, names: list[str], bucket_rows: int) -> None:
    source = write_fasta(tmp_path / "a.fa", [("a", "MKV"), ("a", "MKC"), ("b", "MKD")])
    manifest = prep(tmp_path, source, duplicate_ids=policy, bucket_rows=bucket_rows)
    assert [name for name, _ in rows(tmp_path)] == names
    assert manifest.account["repeated_identifiers"] == 1
    if policy == "skip":
        assert table(tmp_path / "out" / "skipped.tsv")[1] == [str(source), "3", "a", "repeated identifier"]


def test_equal_identifiers_can_stop(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "a.fa", [("a", "MKV"), ("a", "MKC")])
    with pytest.raises(SequenceError, match=r"a\.fa:3: identifier a stands on an earlier record"):
        prep(tmp_path, source, duplicate_ids="error")


def test_fixed_length_windows_cover_every_residue(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    records = {f"r{n}": random_protein(rng, n) for n in (1, 9, 10, 11, 16, 17, 22, 23, 100)}
    manifest = prep(tmp_path, write_fasta(tmp_path / "a.fa", records), fixed_length=10, overlap=4)
    assert (manifest.fixed_length, manifest.overlap) == (10, 4)
    reader = ShardReader(tmp_path / "out", "train")
    found: dict[str, list[str]] = {}
    for i in range(len(reader)):
        tokens, length, start = reader.tokens(i), int(reader.lengths[i]), int(reader.window_starts[i])
        assert len(tokens) == 10
        assert set(tokens[length:].tolist()) <= {PROTEIN.pad_id}
        text = PROTEIN.decode(tokens[:length])
        letters = found.setdefault(reader.id(i), [""] * len(records[reader.id(i)]))
        assert records[reader.id(i)][start : start + length] == text
        letters[start : start + length] = text
    assert {name: "".join(letters) for name, letters in found.items()} == records
    assert [reader.id(i) for i in range(len(reader))].count("r16") == 2
    assert manifest.account["records_windowed"] == 6


def test_long_records_in_windows_or_cut(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "a.fa", {"a": "ACDEFGHIKL", "b": "MKV"})
    manifest = prep(tmp_path, source, max_length=4, long="window", overlap=1)
    assert rows(tmp_path) == [("a", "ACDE"), ("a", "EFGH"), ("a", "HIKL"), ("b", "MKV")]
    assert manifest.account["records_windowed"] == 1
    manifest = prep(tmp_path, source, max_length=4, long="cut")
    assert rows(tmp_path) == [("a", "ACDE"), ("b", "MKV")]
    assert manifest.account["records_cut"] == 1
    with pytest.raises(SequenceError, match=r"a\.fa:1: a: too long: 10 > 4"):
        prep(tmp_path, source, max_length=4, long="error")


def test_tags(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "a.fa", {"ecoli_1": "MKV", "yeast_2": "MKC", "odd": "MKD", "ecoli_3": "MKE"})
    manifest = prep(tmp_path, source, tag_pattern=r"^([a-z0-9_]+?)_\d+$")
    reader = ShardReader(tmp_path / "out", "train")
    assert reader.tags == ["", "ecoli", "yeast"]
    assert [reader.tag_of(i) for i in range(4)] == ["ecoli", "yeast", "", "ecoli"]
    assert reader.tag_codes.tolist() == [1, 2, 0, 1]
    assert manifest.splits["train"].tags == {"": 1, "ecoli": 2, "yeast": 1}


def test_masks_and_kept_letters_have_their_own_ids(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "a.fa", {"a": "MU<mask>J"})
    prep(tmp_path, source, policy={"unknown": "keep"})
    tokens = ShardReader(tmp_path / "out", "train").tokens(0)
    assert tokens.tolist() == [PROTEIN.ids[t] for t in ("M", "U", "<mask>", "X")]
    assert tokens.dtype == np.uint8


def test_bytes_alphabet_keeps_fasta_as_it_is(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "a.fa", {"a": "acgt-N*"})
    prep(tmp_path, source, alphabet="bytes")
    reader = ShardReader(tmp_path / "out", "train")
    assert reader.tokens(0).dtype == np.uint16
    assert BYTES.decode(reader.tokens(0)) == "acgt-N*"


def test_globs_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    for name in ("b", "a"):
        random_fasta(tmp_path / f"{name}.fa", 3, seed=ord(name), prefix=name)
    manifest = prep(tmp_path, [tmp_path / "*.fa"])
    assert [Path(s.path).name for s in manifest.sources] == ["a.fa", "b.fa"]
    stream = io.TextIOWrapper(io.BytesIO(gzip.compress(b">s\nMKV\n")))
    monkeypatch.setattr(sys, "stdin", stream)
    manifest = prep(tmp_path, [Path("-")])
    assert rows(tmp_path) == [("s", "MKV")]
    assert manifest.sources[0].compression == "gzip"


def test_truncated_gzip_stops_and_leaves_no_result(tmp_path: Path) -> None:
    whole = gzip.compress(random_fasta(tmp_path / "a.fa", 2000).read_bytes())
    broken = tmp_path / "broken.fa.gz"
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SequenceError, match=r"broken\.fa\.gz: the gzip data ends too early"):
        prep(tmp_path, broken)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_nothing_left_is_an_error_that_says_why(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "a.fa", {"a": "MKV"})
    with pytest.raises(SequenceError, match="no sequence is left to write: 1 read; 1 too short"):
        prep(tmp_path, source, min_length=10)
    (tmp_path / "empty.fa").write_text("")
    with pytest.raises(SequenceError, match="the input is empty"):
        prep(tmp_path, tmp_path / "empty.fa")


def test_nucleotides_are_warned_about_in_the_manifest(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "a.fa", {"a": "ACGT" * 100})
    assert "looks like nucleotides" in prep(tmp_path, source).warnings[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overlap": 5}, "overlap needs fixed_length"),
        ({"fixed_length": 4, "overlap": 4}, "overlap must be below the window of 4"),
        ({"tag_pattern": "abc"}, "tag_pattern needs a group"),
        ({"tag_pattern": "("}, "not a regular expression"),
        ({"exclude_tags": ["a"]}, "exclude_tags needs tag_pattern"),
        ({"split": {"valid": ["v"], "valid_fraction": 0.1}}, "not both"),
        ({"min_lenght": 3}, "did you mean 'min_length'"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrepConfig.parse({"inputs": ["a.fa"], "output": "out"} | settings)


def test_missing_and_repeated_inputs(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match="no such file"):
        prep(tmp_path, tmp_path / "none.fa")
    with pytest.raises(SequenceError, match="no file matches"):
        prep(tmp_path, tmp_path / "*.none")
    source = random_fasta(tmp_path / "a.fa", 3)
    with pytest.raises(ConfigError, match="given twice"):
        prep(tmp_path, [source, source])


def test_an_empty_split_is_warned_about(tmp_path: Path) -> None:
    source = random_fasta(tmp_path / "a.fa", 5)
    manifest = prep(tmp_path, source, split={"valid_fraction": 1e-9, "cluster_method": "none"})
    assert list(manifest.splits) == ["train"]
    assert manifest.warnings == (
        "no sequence is in valid: too few clusters for so small a fraction, or all are duplicates",
    )


def test_too_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    source = random_fasta(tmp_path / "a.fa", 3)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(OutputError, match=r"prep needs about .* but only 1 B are free"):
        prep(tmp_path, source)


def test_the_manifest_is_plain_json_with_counts_and_checksums(tmp_path: Path) -> None:
    prep(tmp_path, random_fasta(tmp_path / "a.fa", 20))
    values = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert values["sources"][0]["n_records"] == 20
    assert len(values["splits"]["train"]["shards"][0]["sha256"]) == 64
    assert values["parameters"]["policy"] == {"unknown": "map", "gaps": "error", "stops": "map"}
    assert "workers" not in values["parameters"]
