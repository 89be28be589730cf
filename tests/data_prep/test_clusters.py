"""Splits by cluster, and the report of what leaks between them."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protlat.data.shards import Manifest, ShardReader
from protlat.data_prep import minhash
from protlat.data_prep.clusters import choose_method
from protlat.data_prep.config import PrepConfig, SplitConfig
from protlat.data_prep.flow import run
from protlat.data_prep.spill import Spill
from protlat.errors import ConfigError, OutputError, ProtlatError, SequenceError
from tests.data_prep.helpers import mutated, random_protein, write_fasta

N_FAMILIES, FAMILY = 60, 5
needs_mmseqs = pytest.mark.skipif(shutil.which("mmseqs") is None, reason="mmseqs is not installed")


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Families of sequences about 90 % identical to their founder."""
    rng = np.random.default_rng(3)
    rows = []
    for family in range(N_FAMILIES):
        founder = random_protein(rng, 200)
        rows += [(f"f{family}_{member}", mutated(rng, founder, 0.1)) for member in range(FAMILY)]
    order = rng.permutation(len(rows))
    return write_fasta(tmp_path_factory.mktemp("families") / "in.fasta", [rows[i] for i in order])


def prep(output: Path, source: Path, bucket_rows: int = 1000, **split: Any) -> Manifest:
    values = {
        "inputs": [str(source)],
        "output": str(output),
        "block_bytes": 4000,
        "bucket_rows": bucket_rows,
        "split": split,
    }
    return run(PrepConfig.parse(values))


def families_by_split(output: Path, manifest: Manifest) -> dict[str, set[str]]:
    found = {}
    for split in manifest.splits:
        reader = ShardReader(output, split)
        found[split] = {reader.id(i).split("_")[0] for i in range(len(reader))}
    return found


def check_families_are_whole(output: Path, manifest: Manifest) -> None:
    found = families_by_split(output, manifest)
    assert sum(map(len, found.values())) == N_FAMILIES
    assert sum(split.n_sequences for split in manifest.splits.values()) == N_FAMILIES * FAMILY
    assert set(found) == {"train", "valid", "test"}
    for split in ("valid", "test"):
        assert manifest.clusters["rows_sharing_a_cluster_with_train"][split] == 0
        assert manifest.leaks["splits"][split]["n_near"] == 0


@pytest.mark.parametrize("bucket_rows", [50, 1000])
@pytest.mark.parametrize("header", ["id\tcluster\n", "note\tcluster\tid\n", ""])
def test_clusters_from_a_table(tmp_path: Path, families: Path, bucket_rows: int, header: str) -> None:
    names = [line[1:].strip() for line in families.read_text().splitlines() if line.startswith(">")]
    layout = {"id\tcluster\n": "{n}\t{c}\n", "note\tcluster\tid\n": "x\t{c}\t{n}\n", "": "{c}\t{n}\n"}[header]
    table = tmp_path / "clusters.tsv.gz"
    rows = "".join(layout.format(n=name, c=name.split("_")[0]) for name in names)
    table.write_bytes(gzip.compress((header + rows).encode()))
    manifest = prep(tmp_path / "out", families, bucket_rows, clusters=str(table), valid_fraction=0.2, test_fraction=0.2)
    check_families_are_whole(tmp_path / "out", manifest)
    assert manifest.clusters["method"] == "table"
    assert sum(manifest.clusters["n_by_split"].values()) == N_FAMILIES
    reader = ShardReader(tmp_path / "out", "train")
    assert reader.cluster(0) == reader.id(0).split("_")[0]


@needs_mmseqs
def test_clusters_from_mmseqs(tmp_path: Path, families: Path) -> None:
    manifest = prep(tmp_path / "out", families, cluster_method="mmseqs", valid_fraction=0.2, test_fraction=0.2)
    check_families_are_whole(tmp_path / "out", manifest)
    assert manifest.clusters["identity"] == 0.5
    assert manifest.versions["mmseqs"]


def test_clusters_from_minhash(tmp_path: Path, families: Path) -> None:
    manifest = prep(tmp_path / "out", families, cluster_method="minhash", valid_fraction=0.2, test_fraction=0.2)
    check_families_are_whole(tmp_path / "out", manifest)
    assert manifest.clusters["similarity"] == 0.15
    assert 0.65 < manifest.clusters["estimated_identity"] < 0.75


def test_minhash_clusters_do_not_depend_on_the_order(tmp_path: Path, families: Path) -> None:
    rows = families.read_text().split(">")[1:]
    backwards = tmp_path / "in.fasta"
    backwards.write_text("".join(f">{row}" for row in reversed(rows)))
    settings: dict[str, Any] = {"cluster_method": "minhash", "valid_fraction": 0.2, "test_fraction": 0.2}
    one = families_by_split(tmp_path / "a", prep(tmp_path / "a", families, **settings))
    assert families_by_split(tmp_path / "b", prep(tmp_path / "b", backwards, **settings)) == one


def test_without_clusters_families_leak_and_the_report_says_so(tmp_path: Path, families: Path) -> None:
    manifest = prep(tmp_path / "out", families, cluster_method="none", valid_fraction=0.3)
    leak = manifest.leaks["splits"]["valid"]
    assert leak["share_near"] > 0.9
    histogram = dict(map(tuple, leak["nearest_identity_histogram"]))
    assert histogram["80 to 90 %"] + histogram["70 to 80 %"] > 0.9 * leak["n_compared"]


def test_split_is_stable_when_records_are_added(tmp_path: Path, families: Path) -> None:
    more = tmp_path / "more.fasta"
    more.write_text(">new_1\nMSTNPKPQRKTKRNTNRRPQDVKFPGG\n" + families.read_text())
    splits = []
    for number, source in enumerate((families, more)):
        output = tmp_path / str(number)
        manifest = prep(output, source, cluster_method="none", valid_fraction=0.3, seed=1)
        reader = ShardReader(output, "valid")
        splits.append({reader.id(i) for i in range(len(reader))} - {"new_1"})
        assert 0.2 < len(reader) / manifest.account["records_written"] < 0.4
    assert splits[0] == splits[1]
    other = prep(tmp_path / "seed", families, cluster_method="none", valid_fraction=0.3, seed=2)
    reader = ShardReader(tmp_path / "seed", "valid")
    assert {reader.id(i) for i in range(len(reader))} != splits[0]
    assert other.parameters["split"]["seed"] == 2


def test_records_that_the_table_lacks(tmp_path: Path, families: Path) -> None:
    table = tmp_path / "clusters.tsv"
    table.write_text("id\tcluster\nf0_0\tA\nf0_1\tA\n")
    manifest = prep(tmp_path / "out", families, clusters=str(table), valid_fraction=0.2)
    assert "298 of 300 records are not in it" in manifest.warnings[0]
    assert manifest.clusters["n_records_found"] == 2


def test_bad_tables(tmp_path: Path, families: Path) -> None:
    table = tmp_path / "clusters.tsv"
    table.write_text("id\tcluster\nf0_0\n")
    with pytest.raises(SequenceError, match=r"clusters\.tsv:2: expected at least 2 columns"):
        prep(tmp_path / "out", families, clusters=str(table), valid_fraction=0.2)


def test_choice_of_method(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"valid_fraction": 0.1}
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/mmseqs")
    assert choose_method(SplitConfig.parse(wanted)) == "mmseqs"
    assert choose_method(SplitConfig()) == "none"
    assert choose_method(SplitConfig.parse(wanted | {"clusters": "t.tsv"})) == "table"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert choose_method(SplitConfig.parse(wanted)) == "minhash"
    with pytest.raises(ProtlatError, match="apt install mmseqs2"):
        choose_method(SplitConfig.parse(wanted | {"cluster_method": "mmseqs"}))
    with pytest.raises(ConfigError, match="needs --clusters"):
        SplitConfig.parse({"cluster_method": "table"})


def test_minhash_agrees_with_exact_jaccard() -> None:
    rng = np.random.default_rng(4)
    founder = random_protein(rng, 3000)
    pair = [founder, mutated(rng, founder, 0.1)]
    tokens = [np.frombuffer(sequence.encode(), dtype=np.uint8) for sequence in pair]
    words = [set(minhash.kmer_hashes(t, minhash.K).tolist()) for t in tokens]
    exact = len(words[0] & words[1]) / len(words[0] | words[1])
    sketches = minhash.signatures(iter(tokens), 2)
    # 128 values: a standard error of about 0.04; five of them.
    assert abs((sketches[0] == sketches[1]).mean() - exact) < 0.2
    assert minhash.link(sketches, exact / 2)[0] == minhash.link(sketches, exact / 2)[1]


def test_minhash_names_its_limit() -> None:
    with pytest.raises(ProtlatError, match="at most 1,000,000 sequences, here are 2,000,000: install MMseqs2"):
        minhash.signatures(iter([]), 2_000_000)


def test_a_table_that_changed_is_refused(tmp_path: Path) -> None:
    source = write_fasta(tmp_path / "in.fasta", {"a": "MKTAY", "b": "MKVLW"})
    table = tmp_path / "clusters.tsv"
    settings = {"inputs": [str(source)], "output": str(tmp_path / "out"), "split": {"clusters": str(table)}}
    with pytest.raises(SequenceError, match=r"clusters\.tsv: no such table"):
        run(PrepConfig.parse(settings))
    table.write_text("id\tcluster\na\t1\nb\t2\n")
    run(PrepConfig.parse(settings))
    run(PrepConfig.parse(settings))
    table.write_text("id\tcluster\na\t1\nb\t1\n")
    with pytest.raises(OutputError, match=r"made from another .*clusters\.tsv"):
        run(PrepConfig.parse(settings))


def test_buckets_on_disk_leave_no_file_open(tmp_path: Path) -> None:
    spill = Spill(tmp_path / "spill", pa.schema([("x", pa.int64())]), 4)
    spill.add(pa.RecordBatch.from_pydict({"x": [0, 1, 2, 3]}), np.arange(4))
    sinks = list(spill._sinks)
    assert [table.column("x").to_pylist() for table in spill.tables()] == [[0], [1], [2], [3]]
    assert len(sinks) == 4
    assert all(sink.closed for sink in sinks)


def test_two_books_of_one_language_are_not_near_but_a_copy_is(tmp_path: Path) -> None:
    """Frequent words recur in any two texts; most of the sentences of one book stand in another only when it is a copy."""
    generator = np.random.default_rng(0)
    words = [
        "the",
        "of",
        "and",
        "a",
        "letter",
        "captain",
        "whale",
        "river",
        "morning",
        "said",
        "upon",
        "house",
        "never",
    ]

    def book(n: int) -> str:
        return " ".join(words[int(i)] for i in generator.integers(len(words), size=n))

    one, other = book(4000), book(4000)
    for name, text in (("train", one), ("other-valid", other), ("copy-valid", one[:9000] + other[:6000])):
        (tmp_path / f"{name}.txt").write_text(text)
    for name, near in (("other", 0), ("copy", 1)):
        manifest = prep(tmp_path / name, tmp_path / "train.txt", valid=[str(tmp_path / f"{name}-valid.txt")])
        assert manifest.leaks is not None
        leak = manifest.leaks["splits"]["valid"]
        assert leak["n_near"] == near
        assert "nearest_share_histogram" in leak
