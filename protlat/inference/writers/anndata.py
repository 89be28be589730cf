"""AnnData: sequences as observations, for scanpy and its relatives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protlat.inference.naming import Column
from protlat.inference.parts import Row
from protlat.inference.writers import VectorOf


class AnnDataWriter:
    """X holds the first column of the last layer; every further one stands in obsm under its label.

    obs is indexed by the unique identifier and has original_id, header, length and sequence_sha256; uns["protlat"] is
    the metadata as JSON, uns["model_name"] the model's name. Vectors wait in files, not in memory.
    """

    def __init__(
        self, path: Path, columns: Sequence[Column], dim: int, dtype: np.dtype[Any], n_rows: int, scratch: Path
    ) -> None:
        last_layer = max(column.layer for column in columns)
        self._main = next(column for column in columns if column.layer == last_layer)
        self._path = path
        self._rows: list[Row] = []
        self._vectors = {
            column: np.memmap(scratch / f"{path.name}.{column.stem}", dtype, "w+", shape=(n_rows, dim))
            for column in columns
        }

    def add(self, row: Row, vector: VectorOf) -> None:
        for column, matrix in self._vectors.items():
            matrix[len(self._rows)] = vector(column)
        self._rows.append(row)

    def close(self, metadata: dict[str, Any]) -> None:
        import anndata
        import pandas as pd

        obs = pd.DataFrame(
            {
                "original_id": [row.identifier for row in self._rows],
                "header": [row.header for row in self._rows],
                "length": np.array([row.length for row in self._rows], dtype=np.int64),
                "sequence_sha256": [row.sequence_sha256 for row in self._rows],
            },
            index=pd.Index([row.name for row in self._rows], dtype=object),
        )
        matrix = self._vectors[self._main]
        data = anndata.AnnData(
            X=np.asarray(matrix),
            obs=obs,
            var=pd.DataFrame(index=[f"{self._main.kind}_{i}" for i in range(matrix.shape[1])]),
            obsm={c.label: np.asarray(values) for c, values in self._vectors.items() if c is not self._main},
            uns={"protlat": json.dumps(metadata, ensure_ascii=False), "model_name": metadata["model_name"]},
        )
        # Plain text columns: turning repeated values into categories would depend on the data.
        data.write_h5ad(self._path, convert_strings_to_categoricals=False)
