"""A picture of a contact map: predicted above the diagonal, true below where a structure is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protlat.errors import ConfigError
from protlat.files import atomic_path
from protlat.plotting import new_figure, require_plotting
from protlat.tasks.data import PairTarget
from protlat.tasks.pairs import CONTACT_ANGSTROM, MIN_SEPARATION, pair_labels

MAX_RESIDUES = 3000


def require_map_drawable(n_residues: int) -> None:
    """Check the size of a map before any work is done.

    Raises
    ------
    ConfigError
        More residues than a picture can show.
    MissingExtraError
        matplotlib is not installed.
    """
    require_plotting("--plot")
    if n_residues > MAX_RESIDUES:
        raise ConfigError(f"--plot: a map of {n_residues:,} residues does not fit a picture; at most {MAX_RESIDUES:,}")


def draw_contact_map(path: str | Path, title: str, probability: np.ndarray, target: PairTarget | None = None) -> None:
    """Draw a map as a PNG.

    Parameters
    ----------
    path : path
    title : str
    probability : numpy.ndarray, shape (L, L)
    target : PairTarget or None
        True coordinates: the half below the diagonal then shows the true contacts, grey where they are not known.
    """
    n = len(probability)
    require_map_drawable(n)
    positions = np.arange(n)
    near = np.abs(positions[:, None] - positions[None]) < MIN_SEPARATION
    shown = np.where(near, np.nan, probability)
    below = np.tri(n, k=-1, dtype=bool)
    figure = new_figure(6.4, 5.6)
    axes = figure.subplots()
    axes.set_facecolor("white")
    drawn = np.where(below, np.nan, shown) if target is not None else shown
    # Square root: most of a map is improbable, and what stands out of it should be seen.
    image = axes.imshow(
        np.sqrt(drawn), cmap="magma_r", vmin=0, vmax=1, interpolation="nearest", extent=(0.5, n + 0.5, n + 0.5, 0.5)
    )
    if target is not None:
        labels = pair_labels(target)
        truth = np.where(labels.contacts, 1.0, np.where(np.isfinite(labels.distance), np.nan, 0.25))
        axes.imshow(
            np.where(below & ~near, truth, np.nan), cmap="Greys", vmin=0, vmax=1, interpolation="nearest",
            extent=(0.5, n + 0.5, n + 0.5, 0.5),
        )  # fmt: skip
        axes.text(0.98, 0.98, "predicted", transform=axes.transAxes, ha="right", va="top", fontsize=9)
        axes.text(
            0.02, 0.02, f"true (< {CONTACT_ANGSTROM:g} Å; grey: not known)", transform=axes.transAxes, ha="left", va="bottom", fontsize=9
        )  # fmt: skip
    axes.plot([0.5, n + 0.5], [0.5, n + 0.5], color="#888888", linewidth=0.6)
    axes.set_xlabel("residue (1-based)", fontsize=9)
    axes.set_ylabel("residue (1-based)", fontsize=9)
    axes.set_title(title, fontsize=10)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
    marks = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0]
    bar.set_ticks([mark**0.5 for mark in marks], labels=[f"{mark:g}" for mark in marks])
    bar.set_label("probability of a contact", fontsize=9)
    with atomic_path(path) as temporary:
        # Without the version stamp the same map gives the same file.
        figure.savefig(temporary, format="png", metadata={"Software": None})
