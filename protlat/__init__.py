"""protlat: from protein sequences and long documents to answers, at any length."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = ["BYTES", "PROTEIN", "Alphabet", "Encoder", "MaskedLM", "ModelConfig", "Segments", "__version__"]

_HOMES = {
    "Alphabet": "protlat.alphabet",
    "BYTES": "protlat.alphabet",
    "PROTEIN": "protlat.alphabet",
    "Encoder": "protlat.models",
    "MaskedLM": "protlat.models",
    "ModelConfig": "protlat.models",
    "Segments": "protlat.ops.segments",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: `protlat --help` must not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'protlat' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
