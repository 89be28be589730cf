"""A small shard folder for runs from end to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from protlat.alphabet import PROTEIN, STANDARD_RESIDUES
from protlat.data.shards import Manifest, ShardInfo, SplitInfo, shard_schema, write_shard
from protlat.files import sha256_file

Records = Sequence[tuple[str, str, str]]
"""Identifier, tag, residues."""


def write_shards(folder: Path, splits: dict[str, Records]) -> Path:
    """Write a shard folder of proteins, one file a split."""
    schema = shard_schema(PROTEIN.dtype)
    tags = sorted({tag for records in splits.values() for _, tag, _ in records})
    info = {}
    for split, records in splits.items():
        ids = [PROTEIN.encode(residues) for _, _, residues in records]
        offsets = np.cumsum([0, *(len(x) for x in ids)]).astype(np.int32)
        values = np.concatenate([np.zeros(0, PROTEIN.dtype), *ids])
        zeros = [0] * len(records)
        names = pa.array([name for name, _, _ in records], pa.string())
        codes = pa.array([tags.index(tag) for _, tag, _ in records], pa.int16())
        columns = [
            names,
            names,
            pa.DictionaryArray.from_arrays(codes, pa.array(tags, pa.string())),
            pa.array([""] * len(records), pa.string()),
            pa.array(zeros, pa.int32()),
            pa.array(zeros, pa.int64()),
            pa.array(zeros, pa.int32()),
            pa.array([len(x) for x in ids], pa.int32()),
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=schema.field("tokens").type),
        ]
        path = folder / split / "shard-00000.arrow"
        path.parent.mkdir(parents=True)
        n_sequences, n_tokens = write_shard(path, schema, [pa.RecordBatch.from_arrays(columns, schema=schema)])
        size_bytes, name = path.stat().st_size, f"{split}/{path.name}"
        shard = ShardInfo(
            file=name, n_sequences=n_sequences, n_tokens=n_tokens, size_bytes=size_bytes, sha256=sha256_file(path)
        )
        counts = {tag: sum(t == tag for _, t, _ in records) for tag in tags}
        info[split] = SplitInfo(n_sequences=n_sequences, n_tokens=n_tokens, tags=counts, shards=[shard])
    manifest = Manifest(protlat_version="0", alphabet=PROTEIN.to_plain(), tags=tags, splits=info, sources=[])
    (folder / "manifest.json").write_text(json.dumps(manifest.to_plain()))
    return folder


def patterned_records(n_records: int, seed: int) -> list[tuple[str, str, str]]:
    """Sequences in which a residue mostly follows from the one before, 20 to 90 long, with two tags."""
    generator = np.random.default_rng(seed)
    records = []
    for number in range(n_records):
        code = int(generator.integers(20))
        residues = []
        for _ in range(int(generator.integers(20, 90))):
            residues.append(STANDARD_RESIDUES[code])
            code = (code * 3 + 1) % 20 if generator.random() < 0.9 else int(generator.integers(20))
        records.append((f"seq{number}", "odd" if number % 2 else "even", "".join(residues)))
    return records


@pytest.fixture
def make_shards() -> Callable[[Path, dict[str, Records]], Path]:
    return write_shards


@pytest.fixture(scope="session")
def toy_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 training and 12 validation sequences; one training sequence is longer than the toy run's batch."""
    train = [*patterned_records(60, seed=1), ("long", "odd", "ACDEFGHIKL" * 40)]
    folder = tmp_path_factory.mktemp("data") / "shards"
    return write_shards(folder, {"train": train, "valid": patterned_records(12, seed=2)})


TOY_OVERRIDES = (
    "model.d_model=32",
    "model.n_layers=2",
    "model.head_dim=16",
    "model.dropout.residual=0.1",
    "model.dropout.embedding=0.1",
    "batching.tokens_per_batch=256",
    "evaluation.every_steps=4",
    "evaluation.max_tokens=300",
    "checkpoints.every_steps=3",
    "checkpoints.every_minutes=null",
)


@pytest.fixture(scope="session")
def toy_overrides() -> tuple[str, ...]:
    """Settings of a run that takes about a second; dropout is on."""
    return TOY_OVERRIDES
