"""NumPy archive: one array per sequence, readable by `numpy.load` without pickle."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protlat.inference.naming import Column, escape_name
from protlat.inference.parts import Row
from protlat.inference.writers import VectorOf

_COMMENT_BYTES = 65_535
_EPOCH = (1980, 1, 1, 0, 0, 0)


class NpzWriter:
    """Members ``NAME.npy``, or ``COLUMN/NAME.npy`` for several columns.

    What numpy has no place for stands in the archive's comments: the metadata in the archive's own, identifier, header,
    length and hash in each member's, all as JSON. `numpy.load` sees arrays only.
    """

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True)
        self._columns = list(columns)

    def add(self, row: Row, vector: VectorOf) -> None:
        note = {"original_id": row.identifier, "length": row.length, "sequence_sha256": row.sequence_sha256}
        comment = json.dumps({**note, "header": row.header}, ensure_ascii=False).encode()
        if len(comment) > _COMMENT_BYTES:
            comment = json.dumps(
                {**note, "header": row.header[:10_000], "header_cut": True}, ensure_ascii=False
            ).encode()
        for column in self._columns:
            name = escape_name(row.name)
            member = zipfile.ZipInfo(f"{column.label}/{name}.npy" if column.label else f"{name}.npy", _EPOCH)
            member.comment = comment
            values = vector(column)
            with self._zip.open(member, "w", force_zip64=values.nbytes > 1 << 30) as handle:
                np.lib.format.write_array(handle, values, allow_pickle=False)

    def close(self, metadata: dict[str, Any]) -> None:
        self._zip.comment = json.dumps(metadata, ensure_ascii=False).encode()
        self._zip.close()
