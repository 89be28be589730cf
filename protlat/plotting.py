"""The optional drawing package, asked for before work begins and not after it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from protlat.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def require_plotting(needed_for: str) -> None:
    """Refuse a picture that cannot be drawn.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    """
    if not can_plot():
        raise MissingExtraError("matplotlib", "plot", needed_for)


def new_figure(width_inch: float, height_inch: float, dpi: int = 150) -> Figure:
    """An empty figure that draws to files only: no window, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inch, height_inch), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
