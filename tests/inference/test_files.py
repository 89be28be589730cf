"""Every format, written from parts and read back, by our reader and by what users have."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from protlat.errors import ConfigError, OutputError
from protlat.inference.assemble import assemble, plan_outputs
from protlat.inference.describe import describe_embeddings
from protlat.inference.naming import Column
from protlat.inference.parts import Row, WorkFolder
from protlat.inference.reader import load_embeddings, read_metadata

IDENTIFIERS = ["sp|P1|A/B", "v1.2", "twice", "twice", "ünï", "..", "100%"]
NAMES = ["sp|P1|A/B", "v1.2", "twice", "twice#2", "ünï", "..", "100%"]
LENGTHS = [3, 1, 5, 2, 4, 2, 7]
DIM = 4
SEVERAL = [Column(kind, layer) for kind in ("mean", "per_tok", "cls") for layer in (0, 2)]
METADATA = {
    "model_name": "toy", "model_hash": "00", "dim": DIM, "n_residues": sum(LENGTHS), "longest": 7, "inputs": ["in.fasta"],
    "settings": {"store": "float32"}, "length_histogram": [["1-1", 1]],
}  # fmt: skip


def value(index: int, column: Column) -> np.ndarray:
    seed = [index, column.layer, len(column.kind)]
    shape = (LENGTHS[index], DIM) if column.per_residue else (DIM,)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def filled(folder: Path, columns: list[Column], per_part: int = 3) -> tuple[WorkFolder, int]:
    work = WorkFolder(folder, columns, DIM, np.dtype("float32"))
    work.begin({}, resume=False, overwrite=False)
    rows = [
        Row(name, identifier, f"{identifier} a header", length, hashlib.sha256(name.encode()).hexdigest())
        for name, identifier, length in zip(NAMES, IDENTIFIERS, LENGTHS, strict=True)
    ]
    n_parts = 0
    for start in range(0, len(rows), per_part):
        part = rows[start : start + per_part]
        # Results arrive in another order than the input's.
        arriving = reversed([(k, {c: value(start + k, c) for c in columns}) for k in range(len(part))])
        assert sorted(work.write(n_parts, part, iter(arriving))) == list(range(len(part)))
        n_parts += 1
    return work, n_parts


@pytest.fixture
def written(tmp_path: Path) -> Iterator[dict[str, Path]]:
    pytest.importorskip("anndata")
    outputs = plan_outputs([str(tmp_path / f"x.{e}") for e in ("h5", "npz", "parquet", "h5ad")], None, SEVERAL)
    work, n_parts = filled(tmp_path / "work", SEVERAL)
    assert sum(assemble(work, n_parts, len(NAMES), outputs, METADATA)) == len(NAMES)
    return {output.format_name: output.path for output in outputs}


@pytest.mark.parametrize("format_name", ["h5", "npz", "parquet", "h5ad"])
@pytest.mark.parametrize("column", SEVERAL, ids=lambda c: c.stem)
def test_what_is_written_comes_back_in_order(written: dict[str, Path], format_name: str, column: Column) -> None:
    path = written[format_name]
    if column.per_residue and format_name in ("parquet", "h5ad"):
        with pytest.raises(ConfigError, match=r"holds mean of layer 0.*not kind='per_tok'"):
            load_embeddings(path, column.kind, column.layer)
        return
    with load_embeddings(path, column.kind, column.layer) as vectors:
        assert vectors.identifiers == NAMES
        assert len(vectors) == len(NAMES)
        for index, (name, array) in enumerate(vectors):
            assert name == NAMES[index]
            np.testing.assert_array_equal(array, value(index, column))
        np.testing.assert_array_equal(vectors["twice#2"], value(3, column))
        assert "twice#2" in vectors
        assert "nobody" not in vectors
        with pytest.raises(KeyError):
            vectors["nobody"]
    assert read_metadata(path)["model_name"] == "toy"


def test_several_columns_need_a_choice(written: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"name one with kind= and layer="):
        load_embeddings(written["h5"], kind="mean")


def test_one_column_of_h5_is_what_protspace_and_biotrainer_read(tmp_path: Path) -> None:
    for column in (Column("mean", 2), Column("per_tok", 2)):
        work, n_parts = filled(tmp_path / f"work-{column.kind}", [column])
        [output] = plan_outputs([str(tmp_path / f"{column.kind}.h5")], None, [column])
        list(assemble(work, n_parts, len(NAMES), [output], METADATA))
        with h5py.File(output.path) as file:
            assert file.attrs["model_name"] == "toy"
            assert isinstance(file.attrs["model_name"], str)
            # ProtSpace: datasets at the root; biotrainer: {original_id: array}, keys in any order.
            assert all(isinstance(item, h5py.Dataset) for item in file.values())
            assert list(file) == ["sp|P1|A%2FB", "v1.2", "twice", "twice#2", "ünï", "%2E.", "100%25"]
            assert [item.attrs["original_id"] for item in file.values()] == IDENTIFIERS
            for index, item in enumerate(file.values()):
                np.testing.assert_array_equal(np.array(item), value(index, column))


def test_npz_is_plain_numpy(written: dict[str, Path]) -> None:
    with np.load(written["npz"], allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["mean_layer_2/twice#2"], value(3, Column("mean", 2)))
        assert len(archive.files) == len(NAMES) * len(SEVERAL)


def test_parquet_is_a_plain_table(written: dict[str, Path]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(written["parquet"])
    assert list(frame["identifier"]) == NAMES
    assert list(frame["original_id"]) == IDENTIFIERS
    assert list(frame["length"]) == LENGTHS
    np.testing.assert_array_equal(
        np.stack(frame["cls_layer_0"]), [value(i, Column("cls", 0)) for i in range(len(NAMES))]
    )
    import pyarrow.parquet as pq

    assert str(pq.read_schema(written["parquet"]).field("mean_layer_2").type) == "fixed_size_list<element: float>[4]"


def test_h5ad_opens_in_anndata(written: dict[str, Path]) -> None:
    anndata = pytest.importorskip("anndata")
    data = anndata.read_h5ad(written["h5ad"])
    assert list(data.obs_names) == NAMES
    assert list(data.obs["original_id"]) == IDENTIFIERS
    np.testing.assert_array_equal(data.X, [value(i, Column("mean", 2)) for i in range(len(NAMES))])
    np.testing.assert_array_equal(data.obsm["cls_layer_0"], [value(i, Column("cls", 0)) for i in range(len(NAMES))])
    assert json.loads(data.uns["protlat"])["model_hash"] == "00"


def test_the_same_parts_give_the_same_bytes(tmp_path: Path) -> None:
    hashes = []
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        work, n_parts = filled(tmp_path / run / "work", SEVERAL, per_part=3 if run == "a" else 2)
        outputs = plan_outputs([str(tmp_path / run / f"x.{e}") for e in ("h5", "npz", "parquet")], None, SEVERAL)
        list(assemble(work, n_parts, len(NAMES), outputs, METADATA))
        hashes.append([hashlib.sha256(output.path.read_bytes()).hexdigest() for output in outputs])
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("format_name", ["h5", "npz", "parquet", "h5ad"])
def test_info_knows_every_format(written: dict[str, Path], format_name: str) -> None:
    facts = describe_embeddings(written[format_name])
    assert facts["kind"] == "embeddings"
    assert facts["sequences"] == len(NAMES)
    assert facts["numbers"] == "float32"
    assert facts["length histogram"] == [["1-1", 1]]
    assert len(facts["vectors"]) == (6 if format_name in ("h5", "npz") else 4)
    json.dumps(facts)


def test_files_of_other_tools_open(tmp_path: Path) -> None:
    path = tmp_path / "prott5.h5"
    with h5py.File(path, "w") as file:
        file["P1"] = np.ones((3, 8), np.float16)
        file["P2"] = np.ones((5, 8), np.float16)
    with load_embeddings(path) as vectors:
        assert vectors["P2"].shape == (5, 8)
        assert vectors.column.per_residue
    facts = describe_embeddings(path)
    assert facts["written by"] == "another tool"
    assert facts["length histogram"] == [["2-3", 1], ["4-7", 1]]


@pytest.mark.parametrize(
    "content", [b"", b"not embeddings", b"PK\x03\x04 broken", b"PAR1 broken", b"\x89HDF\r\n\x1a\nbroken"]
)
def test_what_is_no_embedding_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(content)
    with pytest.raises(OutputError, match=r"x\.h5: "):
        load_embeddings(path)


def test_a_missing_or_short_part_is_found(tmp_path: Path) -> None:
    work, n_parts = filled(tmp_path / "work", SEVERAL)
    with pytest.raises(OutputError, match="part 3 of 4 is missing; run again with --resume"):
        list(work.parts(n_parts + 1))
    os.truncate(tmp_path / "work" / "part-000001.mean.0.bin", 5)
    with pytest.raises(OutputError, match=r"5 bytes, expected 48"):
        list(work.parts(n_parts))


def test_a_failed_write_leaves_no_output_and_keeps_the_old_one(tmp_path: Path) -> None:
    work, n_parts = filled(tmp_path / "work", SEVERAL)
    outputs = plan_outputs([str(tmp_path / f"x.{e}") for e in ("h5", "npz", "parquet", "h5ad")], None, SEVERAL)
    outputs[0].path.write_bytes(b"old")
    (tmp_path / "work" / "part-000002.json").unlink()
    with pytest.raises(OutputError, match="part 2 of 3"):
        list(assemble(work, n_parts, len(NAMES), outputs, METADATA))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["work", "x.h5"]
    assert outputs[0].path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("paths", "columns", "message"),
    [
        (["x.csv"], SEVERAL, r"ending '\.csv' names no format"),
        (["x.parquet"], [Column("per_tok", 2)], "cannot hold per_tok"),
        (["x.parquet"], SEVERAL, "--include per_tok: none of the outputs can hold it"),
        (["x.h5", "x.h5"], SEVERAL, "given twice"),
    ],
)
def test_outputs_that_cannot_be_are_refused(paths: list[str], columns: list[Column], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_outputs(paths, None, columns)


def test_separate_gives_one_flat_file_per_column() -> None:
    outputs = plan_outputs(["out/x.h5"], None, [Column("mean", 2), Column("per_tok", 2)], separate=True)
    assert [(str(o.path), [c.label for c in o.columns]) for o in outputs] == [
        ("out/x.mean.h5", [""]),
        ("out/x.per_tok.h5", [""]),
    ]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "x.h5.partial"
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    work = WorkFolder(folder, SEVERAL, DIM, np.dtype("float32"))
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"is in the way: it is no unfinished run \(it holds 'thesis\.txt'\)"):
            work.begin({}, resume=False, overwrite=overwrite)
    assert (folder / "thesis.txt").exists()
