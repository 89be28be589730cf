"""The shard folder as others read it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from protlat.alphabet import PROTEIN
from protlat.data.describe import describe_shards
from protlat.data.shards import ShardReader, read_manifest
from protlat.data_prep.config import PrepConfig
from protlat.data_prep.flow import run
from protlat.errors import ShardError

N_ROWS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "in.fasta"
    source.write_text("".join(f">t{i % 3}_{i} number {i}\n{'MKV' + 'ACDEFGHIKL'[i % 10] * i}\n" for i in range(N_ROWS)))
    values = {"inputs": [str(source)], "output": str(tmp_path / "out"), "block_bytes": 100, "shard_tokens": 150}
    run(PrepConfig.parse(values | {"tag_pattern": "^(t[0-9])_"}))
    return tmp_path / "out"


def test_random_access(folder: Path) -> None:
    reader = ShardReader(folder, "train", verify=True)
    assert len(reader) == N_ROWS
    assert len(reader.info.shards) > 3
    for i in (0, N_ROWS - 1, 17, -1, 5):
        row = i % N_ROWS
        assert reader.id(i) == f"t{row % 3}_{row}"
        assert reader.header(i) == f"t{row % 3}_{row} number {row}"
        assert reader.tag_of(i) == f"t{row % 3}"
        assert PROTEIN.decode(reader.tokens(i)) == "MKV" + "ACDEFGHIKL"[row % 10] * row
    with pytest.raises(IndexError):
        reader.tokens(N_ROWS)


def test_columns(folder: Path) -> None:
    reader = ShardReader(folder, "train")
    assert reader.lengths.dtype == np.int64
    assert reader.lengths.tolist() == [3 + i for i in range(N_ROWS)]
    assert reader.tag_codes.dtype == np.int16
    assert [reader.tags[code] for code in reader.tag_codes[:3]] == ["t0", "t1", "t2"]
    assert reader.alphabet is PROTEIN


def test_tokens_are_views_of_the_mapped_file(folder: Path) -> None:
    tokens = ShardReader(folder, "train").tokens(3)
    assert tokens.base is not None
    assert not tokens.flags.writeable


def test_pickled_reader_opens_the_files_again(folder: Path) -> None:
    reader = ShardReader(folder, "train")
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.fingerprint == reader.fingerprint
    np.testing.assert_array_equal(copy.tokens(7), reader.tokens(7))


def test_other_programs_read_the_files(folder: Path) -> None:
    import pyarrow as pa

    table = pa.ipc.open_file(folder / "train" / "shard-00000.arrow").read_all()
    assert table.column_names == [
        "id", "header", "tag", "cluster", "source_file", "source_line", "window_start", "length", "tokens",
    ]  # fmt: skip
    assert table.column("source_line").to_pylist()[:3] == [1, 3, 5]
    assert table.column("tag").to_pylist()[:3] == ["t0", "t1", "t2"]


def test_damage_is_found(folder: Path) -> None:
    shard = folder / "train" / "shard-00001.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    ShardReader(folder, "train")
    with pytest.raises(ShardError, match=r"shard-00001\.arrow: its checksum differs"):
        ShardReader(folder, "train", verify=True)
    shard.write_bytes(data[:-10])
    with pytest.raises(ShardError, match="the manifest says"):
        ShardReader(folder, "train")
    shard.unlink()
    with pytest.raises(ShardError, match=r"shard-00001\.arrow: missing"):
        ShardReader(folder, "train")


def test_what_is_no_shard_folder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="no such shard folder"):
        read_manifest(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShardError, match="not a finished shard folder"):
        read_manifest(tmp_path / "empty")
    with pytest.raises(ShardError, match="no split 'valid'; it has train"):
        ShardReader(folder, "valid")
    values = json.loads((folder / "manifest.json").read_text())
    for change, message in (
        ({"version": 99}, "layout version 99"),
        ({"format": "other"}, "not a manifest of protlat shards"),
        ({"tagz": []}, "did you mean 'tags'"),
    ):
        (folder / "manifest.json").write_text(json.dumps(values | change))
        with pytest.raises(ShardError, match=message):
            read_manifest(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ShardError, match="cannot be read"):
        read_manifest(folder)


def test_description(folder: Path) -> None:
    found = describe_shards(folder)
    json.dumps(found)
    assert found["splits"]["train"]["sequences"] == N_ROWS
    assert found["splits"]["train"]["length histogram"] == [["< 50", N_ROWS]]
    assert found["tags"]["t0"] == {"train": 14}
    assert found["policies"]["unknown"] == "map"
