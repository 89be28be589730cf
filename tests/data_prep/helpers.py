"""Made-up inputs and folder comparison for the tests of prep."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

RESIDUES = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", dtype=np.uint8)


def random_protein(rng: np.random.Generator, length: int) -> str:
    return rng.choice(RESIDUES, length).tobytes().decode()


def mutated(rng: np.random.Generator, sequence: str, share: float) -> str:
    letters = np.frombuffer(sequence.encode(), dtype=np.uint8).copy()
    places = rng.choice(len(letters), round(share * len(letters)), replace=False)
    letters[places] = rng.choice(RESIDUES, len(places))
    return letters.tobytes().decode()


def write_fasta(path: Path, records: dict[str, str] | list[tuple[str, str]]) -> Path:
    rows = records.items() if isinstance(records, dict) else records
    path.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in rows))
    return path


def random_fasta(path: Path, n_records: int, seed: int = 0, prefix: str = "p") -> Path:
    rng = np.random.default_rng(seed)
    return write_fasta(
        path, {f"{prefix}_{i}": random_protein(rng, int(rng.integers(20, 120))) for i in range(n_records)}
    )


def folder_bytes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def die(work: object) -> None:
    """Stands for a worker that the system kills."""
    os._exit(9)
