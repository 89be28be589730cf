"""Contact maps on disk: a NumPy archive of arrays that `numpy.load` reads without pickle."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from protlat.inference.contacts import Pairs
from protlat.inference.naming import escape_name
from protlat.inference.parts import Row

_EPOCH = (1980, 1, 1, 0, 0, 0)


class ContactArchive:
    """Members ``NAME.npy`` (L, L) float32 probabilities, symmetric, for maps; ``pairs/NAME.npy`` (K, 2) int32 0-based residues
    and ``probability/NAME.npy`` (K,) float32 for chains of which only the top pairs are kept.

    The archive's comment holds the metadata as JSON, a member's comment identifier, length and hash of its sequence.
    """

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True)

    def add_map(self, row: Row, probability: np.ndarray) -> None:
        self._add("", row, probability)

    def add_pairs(self, row: Row, pairs: Pairs) -> None:
        self._add("pairs/", row, np.stack([pairs.first, pairs.second], axis=1).astype(np.int32))
        self._add("probability/", row, pairs.probability)

    def _add(self, prefix: str, row: Row, values: np.ndarray) -> None:
        member = zipfile.ZipInfo(f"{prefix}{escape_name(row.name)}.npy", _EPOCH)
        member.compress_type = zipfile.ZIP_DEFLATED
        note = {"original_id": row.identifier, "length": row.length, "sequence_sha256": row.sequence_sha256}
        member.comment = json.dumps(note, ensure_ascii=False).encode()[:65_535]
        with self._zip.open(member, "w", force_zip64=values.nbytes > 1 << 30) as handle:
            np.lib.format.write_array(handle, np.ascontiguousarray(values), allow_pickle=False)

    def close(self, metadata: dict[str, Any]) -> None:
        """Write the metadata and close."""
        self._zip.comment = json.dumps(metadata, ensure_ascii=False).encode()
        self._zip.close()
