"""Names inside an embedding file: one per sequence, never two alike, safe as a dataset or archive member."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protlat.inference.settings import VectorConfig

# "/" opens a group in HDF5 and a folder in an archive; "%" must be escaped for the escape itself to be reversible.
_UNSAFE = frozenset("/%\\") | {chr(code) for code in (*range(32), 127)}


def escape_name(identifier: str) -> str:
    """An identifier as the name of a dataset or archive member; `unescape_name` reverses it.

    Examples
    --------
    >>> escape_name("sp|P12345|A/B")
    'sp|P12345|A%2FB'
    >>> escape_name("..")
    '%2E.'
    """
    escaped = "".join(f"%{ord(c):02X}" if c in _UNSAFE else c for c in identifier)
    # "." names the current group in HDF5, ".." the folder above in an archive.
    return "%2E" + escaped[1:] if escaped in (".", "..") else escaped


def unescape_name(name: str) -> str:
    """Inverse of `escape_name`."""
    from urllib.parse import unquote

    return unquote(name)


class NameRegistry:
    """Gives each sequence of an input a name of its own: the identifier, then ``identifier#2``, ``identifier#3`` ...

    Names depend only on the order of the sequences. Memory grows by about 70 bytes a sequence: names are remembered as
    64-bit hashes (two of ten million differing names share one with a probability of 3e-6; the later then gets "#2").
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._last_number: dict[str, int] = {}
        self.n_duplicates = 0

    def unique(self, identifier: str) -> str:
        """The name of the next sequence with this identifier."""
        if self._add(identifier):
            return identifier
        self.n_duplicates += 1
        number = self._last_number.get(identifier, 1) + 1
        while not self._add(f"{identifier}#{number}"):
            number += 1
        self._last_number[identifier] = number
        return f"{identifier}#{number}"

    def _add(self, name: str) -> bool:
        key = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


@dataclass(frozen=True)
class Column:
    """One kind of vector from one layer.

    Attributes
    ----------
    kind : str
        "mean", "per_tok" or "cls".
    layer : int
        Layer number, 0 (token embedding) to the number of layers.
    label : str
        Name inside a file; "" when the file holds this column only.
    """

    kind: str
    layer: int
    label: str = ""

    @property
    def per_residue(self) -> bool:
        return self.kind == "per_tok"

    @property
    def stem(self) -> str:
        """Name that does not depend on what else was asked for."""
        return f"{self.kind}.{self.layer}"

    def to_plain(self) -> dict[str, Any]:
        return {"kind": self.kind, "layer": self.layer, "label": self.label}


def columns_of(vectors: VectorConfig, n_layers: int) -> list[Column]:
    """Columns in the order they are written: by kind, then by layer as asked for.

    Raises
    ------
    ConfigError
        A layer that the model does not have.
    """
    from protlat.errors import ConfigError

    layers = []
    for layer in vectors.repr_layers:
        resolved = layer if layer >= 0 else n_layers + 1 + layer
        if not 0 <= resolved <= n_layers:
            raise ConfigError(
                f"--repr-layers {layer}: the model has layers 0 (token embedding) to {n_layers} (last), or -1 to {-n_layers - 1}"
            )
        if resolved not in layers:
            layers.append(resolved)
    return [Column(kind, layer) for kind in vectors.include for layer in layers]


def labelled(columns: Sequence[Column]) -> list[Column]:
    """The columns of one file with their labels in it.

    A single column needs none: its datasets lie at the root, as ProtSpace and biotrainer read them. Several are told
    apart by ``mean``, ``per_tok`` ..., and with several layers by ``mean_layer_6`` ...
    """
    if len(columns) == 1:
        return [Column(columns[0].kind, columns[0].layer)]
    several_layers = len({c.layer for c in columns}) > 1
    return [Column(c.kind, c.layer, f"{c.kind}_layer_{c.layer}" if several_layers else c.kind) for c in columns]
