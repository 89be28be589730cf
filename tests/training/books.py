"""A shard folder of small documents, as bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protlat.data_prep.config import PrepConfig, SplitConfig
from protlat.data_prep.flow import run

SMALL = {
    "d_model": 16,
    "n_layers": 2,
    "head_dim": 8,
    "attention": [{"kind": "window", "n_heads": 1, "radius": 5}, {"kind": "linear", "n_heads": 1}],
    "local_conv": {"size": 3, "target": "qkv"},
}
"""Settings of a model for documents that computes in no time."""
_WORDS = ("the", "of", "a", "protein", "folds", "in", "water", "and", "sees", "light", "again")


def texts(n_texts: int, seed: int, longest: int = 60) -> list[str]:
    """Sentences of random words, from one word to `longest`."""
    generator = np.random.default_rng(seed)
    sizes = [1, longest, *generator.integers(1, longest, size=n_texts)][:n_texts]
    return [" ".join(generator.choice(_WORDS, size=size)) + f" {number}." for number, size in enumerate(sizes)]


def write_books(folder: Path, splits: dict[str, list[str]]) -> Path:
    """Prepare texts, one file each, with the splits given."""
    files: dict[str, list[str]] = {}
    for split, documents in splits.items():
        files[split] = []
        for number, text in enumerate(documents):
            path = folder.parent / "texts" / split / f"book{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            files[split].append(str(path))
    split_config = SplitConfig(valid=tuple(files.get("valid", ())), test=tuple(files.get("test", ())))
    run(PrepConfig(inputs=tuple(files["train"]), output=str(folder), split=split_config, leak_sample=0, workers=1))
    return folder
