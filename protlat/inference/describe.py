"""What an embedding file is, for `protlat info`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protlat.files import format_bytes
from protlat.inference.account import histogram
from protlat.inference.reader import EmbeddingFile, load_embeddings, read_metadata

_NAMES = {"h5": "HDF5", "npz": "NumPy archive", "parquet": "Parquet", "h5ad": "AnnData"}


def describe_embeddings(path: str | Path) -> dict[str, Any]:
    """Facts about an embedding file, as plain nested values.

    Parameters
    ----------
    path : path
        A file that `load_embeddings` reads.

    Returns
    -------
    dict
        Model, vector kinds, layers, shapes, counts, settings; ``length histogram`` is a list of [label, count].

    Raises
    ------
    OutputError
        The file is missing, damaged or holds no embeddings.
    """
    path = Path(path)
    metadata = read_metadata(path)
    columns = metadata.get("columns") or [{}]
    with load_embeddings(path, columns[0].get("kind"), columns[0].get("layer")) as file:
        first = next(iter(file), None)
        facts: dict[str, Any] = {
            "kind": "embeddings",
            "file": str(path),
            "format": _NAMES[file.format_name],
            "size": format_bytes(path.stat().st_size),
            "model name": metadata.get("model_name", "not recorded"),
            "model hash": metadata.get("model_hash", "not recorded"),
            "sequences": len(file),
        }
        if not metadata.get("columns"):
            facts |= {"written by": "another tool", "dim": int(first[1].shape[-1]) if first else 0}
            facts["numbers"] = str(first[1].dtype) if first else "none"
            if file.column.per_residue:
                facts["length histogram"] = _measured(file)
            return facts
        facts |= {
            "residues": metadata["n_residues"],
            "longest": metadata["longest"],
            "vectors": {
                f"{column['kind']}, layer {column['layer']}": f"{_shape(column, metadata['dim'])}, {_place(file.format_name, column)}"
                for column in columns
            },
            "numbers": str(first[1].dtype) if first else metadata["settings"]["store"],
            "inputs": ", ".join(metadata["inputs"]),
            "settings": metadata["settings"],
            "length histogram": metadata["length_histogram"],
        }
    return facts


def _shape(column: dict[str, Any], dim: int) -> str:
    return f"L x {dim}" if column["kind"] == "per_tok" else f"{dim}"


def _place(format_name: str, column: dict[str, Any]) -> str:
    label = column["label"]
    if format_name == "parquet":
        return f"in column {label or column['kind']}"
    if format_name == "h5ad":
        return f"in obsm[{label!r}], the first of the last layer in X" if label else "in X"
    return f"at {label}/IDENTIFIER" if label else "at IDENTIFIER"


def _measured(file: EmbeddingFile) -> list[list[str | int]]:
    counts: dict[int, int] = {}
    for _, vectors in file:
        upper = 1 << len(vectors).bit_length()
        counts[upper] = counts.get(upper, 0) + 1
    return histogram(counts)
