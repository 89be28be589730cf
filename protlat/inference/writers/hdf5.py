"""HDF5: one dataset per sequence, as ProtSpace and biotrainer read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protlat.inference.naming import Column, escape_name
from protlat.inference.parts import Row
from protlat.inference.writers import VectorOf


class HDF5Writer:
    """Datasets named by identifier, at the root for a single column, else in one group per column.

    Creation order is tracked, so that readers go through the datasets in input order; times are not, so that the same
    run gives the same bytes.
    """

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        import h5py

        self._file = h5py.File(path, "w", track_order=True)
        self._columns = list(columns)
        self._groups = {
            column: self._file.create_group(column.label, track_order=True) if column.label else self._file
            for column in columns
        }

    def add(self, row: Row, vector: VectorOf) -> None:
        name = escape_name(row.name)
        for column, group in self._groups.items():
            dataset = group.create_dataset(name, data=vector(column), track_times=False)
            dataset.attrs["original_id"] = row.identifier
            dataset.attrs["header"] = row.header
            dataset.attrs["length"] = row.length
            dataset.attrs["sequence_sha256"] = row.sequence_sha256

    def close(self, metadata: dict[str, Any]) -> None:
        self._file.attrs["model_name"] = metadata["model_name"]
        self._file.attrs["model_hash"] = metadata["model_hash"]
        self._file.attrs["protlat"] = json.dumps(metadata, ensure_ascii=False)
        self._file.close()
