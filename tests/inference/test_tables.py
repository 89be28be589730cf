from __future__ import annotations

import json
from pathlib import Path

import pytest

from protlat.errors import ConfigError
from protlat.inference.tables import open_table, require_table_ending

COLUMNS = {"name": str, "n": int, "p": float}
ROWS = [("a", 1, 0.25), ("ü", 2, float("nan"))]


def fill(path: Path, rows: list) -> None:
    with open_table(str(path), COLUMNS, {"model": "toy"}) as add:
        for row in rows:
            add(row)


def test_tsv(tmp_path: Path) -> None:
    fill(tmp_path / "x.tsv", ROWS)
    assert (tmp_path / "x.tsv").read_bytes().decode() == "name\tn\tp\na\t1\t0.25\nü\t2\tnan\n"


@pytest.mark.parametrize("n_rows", [0, 1, 2])
def test_json(tmp_path: Path, n_rows: int) -> None:
    fill(tmp_path / "x.json", ROWS[:n_rows])
    expected = [{"name": "a", "n": 1, "p": 0.25}, {"name": "ü", "n": 2, "p": None}][:n_rows]
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == expected


def test_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    fill(tmp_path / "x.parquet", ROWS)
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column("n").to_pylist() == [1, 2]
    assert json.loads(table.schema.metadata[b"protlat"]) == {"model": "toy"}


def fill_and_fail(path: Path) -> None:
    with open_table(str(path), COLUMNS, {}) as add:
        add(ROWS[0])
        raise RuntimeError("stop")


def test_a_failure_leaves_no_table(tmp_path: Path) -> None:
    for ending in ("tsv", "json", "parquet"):
        with pytest.raises(RuntimeError, match="stop"):
            fill_and_fail(tmp_path / f"x.{ending}")
    assert list(tmp_path.iterdir()) == []


def test_unknown_endings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"use an ending of \.tsv"):
        require_table_ending("x.xlsx")
