"""Parquet: one row per sequence, vectors as fixed-size lists."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protlat.inference.naming import Column
from protlat.inference.parts import Row
from protlat.inference.writers import VectorOf

_GROUP_BYTES = 16 << 20


class ParquetWriter:
    """Columns identifier, original_id, header, length, sequence_sha256, then one per vector kind and layer.

    A vector column is named by its kind (``mean``), and with several layers ``mean_layer_6``. The metadata stands under
    the key ``protlat`` of the file's key-value metadata, as JSON.
    """

    def __init__(self, path: Path, columns: Sequence[Column], dim: int, dtype: np.dtype[Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        value = pa.from_numpy_dtype(dtype)
        self._columns = list(columns)
        fields = [pa.field(name, pa.string()) for name in ("identifier", "original_id", "header")]
        fields += [pa.field("length", pa.int64()), pa.field("sequence_sha256", pa.string())]
        fields += [pa.field(column.label or column.kind, pa.list_(value, dim)) for column in columns]
        self._schema = pa.schema(fields)
        text = ["identifier", "original_id", "header"]
        # Dictionaries and compression pay for text; vectors are noise to them.
        self._file = pq.ParquetWriter(
            path,
            self._schema,
            use_dictionary=False,
            compression={name: "zstd" if name in text else "none" for name in self._schema.names},
            store_schema=True,
        )
        self._rows: list[Row] = []
        self._vectors: dict[Column, list[np.ndarray]] = {column: [] for column in columns}
        self._rows_per_group = max(1, _GROUP_BYTES // (dim * dtype.itemsize * max(len(self._columns), 1)))

    def add(self, row: Row, vector: VectorOf) -> None:
        self._rows.append(row)
        for column, vectors in self._vectors.items():
            vectors.append(vector(column))
        if len(self._rows) >= self._rows_per_group:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        rows = self._rows
        arrays: list[Any] = [
            [row.name for row in rows],
            [row.identifier for row in rows],
            [row.header for row in rows],
            [row.length for row in rows],
            [row.sequence_sha256 for row in rows],
        ]
        arrays = [pa.array(values, field.type) for values, field in zip(arrays, self._schema, strict=False)]
        for column in self._columns:
            stacked = np.stack(self._vectors[column])
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(stacked.ravel()), stacked.shape[1]))
            self._vectors[column].clear()
        self._file.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        rows.clear()

    def close(self, metadata: dict[str, Any]) -> None:
        self._flush()
        self._file.add_key_value_metadata({"protlat": json.dumps(metadata, ensure_ascii=False)})
        self._file.close()
