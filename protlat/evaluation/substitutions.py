"""Variant effects from what every biochemist knows: which residues replace each other, and how oily they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from protlat.inference.variants import Variant

BASELINES = ("blosum62", "hydrophobicity")


@cache
def _blosum62() -> dict[tuple[str, str], float]:
    from Bio.Align import substitution_matrices

    matrix = substitution_matrices.load("BLOSUM62")
    return {(a, b): float(matrix[a, b]) for a in matrix.alphabet for b in matrix.alphabet}


@cache
def _hydropathy() -> dict[str, float]:
    from Bio.SeqUtils.ProtParamData import kd

    return dict(kd)


def substitution_scores(variants: Sequence[Variant], baseline: str) -> np.ndarray:
    """Scores of variants without a model, higher for milder ones, shape (V,), float64; several mutations add up.

    Parameters
    ----------
    variants : sequence of Variant
    baseline : str
        "blosum62": the matrix's entry of old and new residue; "hydrophobicity": minus the absolute change in hydropathy.

    References
    ----------
    Henikoff and Henikoff 1992, Amino acid substitution matrices from protein blocks; Kyte and Doolittle 1982, A simple
    method for displaying the hydropathic character of a protein. Both tables are Biopython's.
    """
    if baseline == "blosum62":
        matrix = _blosum62()
        return np.array([sum(matrix[m.wild_type, m.mutant] for m in v.mutations) for v in variants], dtype=np.float64)
    if baseline == "hydrophobicity":
        scale = _hydropathy()
        return np.array(
            [-sum(abs(scale[m.mutant] - scale[m.wild_type]) for m in v.mutations) for v in variants], dtype=np.float64
        )
    raise ValueError(f"baseline {baseline!r} is unknown; known: {', '.join(BASELINES)}")
