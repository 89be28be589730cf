"""A picture of what a model expects along one protein."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protlat.errors import ConfigError
from protlat.files import atomic_path
from protlat.plotting import new_figure, require_plotting

MAX_POSITIONS = 3000
_PER_PANEL = 80
# Small and special, aliphatic, aromatic, polar, positive, negative: neighbours are alike, so that a preference for a kind
# of residue shows as a band.
_ORDER = "GAPCVILMFWYSTNQHKRDE"


@dataclass(frozen=True)
class HeatScale:
    """What the colours mean.

    Attributes
    ----------
    label : str
    colours : str
        Name of a matplotlib colour map.
    diverges : bool
        Symmetric about 0; otherwise from 0 up.
    positions : str
        What the numbers of the positions are.
    """

    label: str
    colours: str
    diverges: bool = False
    positions: str = "position (1-based)"

    def limits(self, table: np.ndarray) -> tuple[float, float]:
        """Ends of the scale; a diverging one spans 98 % of the values, so that single extremes do not bleach the rest."""
        if not self.diverges:
            return 0.0, max(float(table.max()), 1e-9)
        end = max(float(np.percentile(np.abs(table), 98)), 1e-9)
        return -end, end


PROBABILITIES = HeatScale("probability (dot: the sequence's own residue)", "magma_r")
EFFECTS = HeatScale("log-odds beside the wild type (dot: the wild type's own residue)", "RdBu_r", True, "position")


def require_drawable(n_positions: int) -> None:
    """Check the number of positions before any work is done.

    Raises
    ------
    ConfigError
        More than a picture can show.
    MissingExtraError
        matplotlib is not installed.
    """
    require_plotting("--plot")
    if n_positions > MAX_POSITIONS:
        raise ConfigError(
            f"--plot: {n_positions:,} positions do not fit a picture; choose at most {MAX_POSITIONS:,} with --positions"
        )


def draw_heatmap(
    path: str | Path,
    title: str,
    positions_1based: Sequence[int],
    wild_types: Sequence[str],
    probabilities: np.ndarray,
    residues: Sequence[str],
    scale: HeatScale = PROBABILITIES,
) -> None:
    """Draw positions against residues as a PNG, the sequence's own residue marked by a dot.

    Parameters
    ----------
    path : path
    title : str
    positions_1based : sequence of int
        Ascending.
    wild_types : sequence of str
        Letter at each position, ``<mask>`` where it is not known.
    probabilities : numpy.ndarray, shape (P, R)
    residues : sequence of str
        Letter of each column.
    scale : HeatScale
        Probabilities, or effects of variants.

    Raises
    ------
    ConfigError
        More positions than a picture can show, or residues that are not the 20.
    """
    require_drawable(len(positions_1based))
    if sorted(residues) != sorted(_ORDER):
        raise ConfigError("--plot draws the 20 residues; this model's alphabet is another")

    column_of = {residue: column for column, residue in enumerate(residues)}
    table = probabilities[:, [column_of[residue] for residue in _ORDER]].T
    n_columns = min(len(positions_1based), _PER_PANEL)
    n_panels = -(-len(positions_1based) // _PER_PANEL)
    figure = new_figure(max(4.5, 1.6 + 0.16 * n_columns), 0.7 + 3.4 * n_panels, dpi=120)
    axes = figure.subplots(n_panels, 1, squeeze=False)[:, 0]
    image = None
    low, high = scale.limits(table)
    for panel, axis in enumerate(axes):
        start = panel * _PER_PANEL
        part = slice(start, start + _PER_PANEL)
        shown = positions_1based[part]
        image = axis.imshow(
            table[:, part],
            aspect="auto",
            cmap=scale.colours,
            vmin=low,
            vmax=high,
            interpolation="nearest",
        )
        dots = [(x, _ORDER.index(letter)) for x, letter in enumerate(wild_types[part]) if letter in _ORDER]
        if dots:
            axis.scatter(*zip(*dots, strict=True), s=9, facecolors="white", edgecolors="black", linewidths=0.6)
        axis.set_yticks(range(len(_ORDER)), list(_ORDER), fontsize=7, family="monospace")
        contiguous = shown[-1] - shown[0] == len(shown) - 1
        if len(positions_1based) <= 20:
            ticks = list(range(len(shown)))
        else:
            ticks = [x for x, position in enumerate(shown) if (position if contiguous else x) % 10 == 0]
        axis.set_xticks(ticks, [f"{shown[x]}" for x in ticks], fontsize=7)
        # Panels share one scale, so the last, shorter one keeps the cell width of the others.
        axis.set_xlim(-0.5, n_columns - 0.5)
        axis.set_ylabel("residue", fontsize=8)
    axes[-1].set_xlabel(scale.positions, fontsize=8)
    figure.suptitle(title, fontsize=9)
    if image is not None:
        bar = figure.colorbar(image, ax=list(axes), fraction=0.03, pad=0.01)
        bar.set_label(scale.label, fontsize=8)
        bar.ax.tick_params(labelsize=7)
    with atomic_path(path) as temporary:
        # Without the version stamp the same table gives the same file.
        figure.savefig(temporary, format="png", metadata={"Software": None})
