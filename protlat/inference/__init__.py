"""Using a model: embeddings and masked-residue predictions."""

from __future__ import annotations

from typing import Any

__all__ = ["Embedder", "EmbeddingFile", "MaskedPredictor", "describe_embeddings", "load_embeddings"]

_HOMES = {
    "EmbeddingFile": "protlat.inference.reader",
    "Embedder": "protlat.inference.vectors",
    "MaskedPredictor": "protlat.inference.masked",
    "describe_embeddings": "protlat.inference.describe",
    "load_embeddings": "protlat.inference.reader",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: reading a file must not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'protlat.inference' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
