"""Plots of the report as SVG text that stands in the page itself."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protlat.plotting import can_plot, new_figure

_OURS, _BASE, _PEER, _INK = "#2563c9", "#98a2b3", "#b54708", "#1d2433"
_PLAIN_FONT = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}


@dataclass(frozen=True)
class Bar:
    """One bar: name, value, ends of its interval (nan: none), and whether it is the model's."""

    name: str
    value: float
    low: float
    high: float
    ours: bool


def bars(title: str, groups: Sequence[tuple[str, Sequence[Bar]]], peers: Sequence[tuple[str, float]] = ()) -> str:
    """Horizontal bars with intervals, one panel a group, as an ``<svg>`` element; empty without matplotlib.

    Parameters
    ----------
    title : str
        What the axis shows.
    groups : sequence of (str, sequence of Bar)
    peers : sequence of (str, float)
        Published scores, drawn as dotted lines.
    """
    groups = [(name, [bar for bar in found if bar.value == bar.value]) for name, found in groups]
    groups = [(name, found) for name, found in groups if found]
    if not can_plot() or not groups:
        return ""
    import matplotlib

    looks: dict[Any, Any] = {**_PLAIN_FONT, "svg.hashsalt": title + groups[0][0]}
    with matplotlib.rc_context(looks):
        n_bars = max(len(found) for _, found in groups)
        width = 4.6 * min(len(groups), 2) + 1.4
        n_rows = -(-len(groups) // 2)
        figure = new_figure(width, (1.2 + 0.26 * n_bars) * n_rows, dpi=72)
        axes = figure.subplots(n_rows, min(len(groups), 2), squeeze=False)
        for axis in axes.flat[len(groups) :]:
            axis.set_visible(False)
        for axis, (name, found) in zip(axes.flat, groups, strict=False):
            _panel(axis, name if len(groups) > 1 else "", found, peers)
            axis.set_xlabel(title, color=_INK)
        return _svg(figure)


def _panel(axis: object, name: str, found: Sequence[Bar], peers: Sequence[tuple[str, float]]) -> None:
    places = range(len(found))
    colours = [_OURS if bar.ours else _BASE for bar in found]
    axis.barh(places, [bar.value for bar in found], color=colours, height=0.66)  # type: ignore[attr-defined]  # an Axes
    for place, bar in zip(places, found, strict=True):
        if bar.low == bar.low:
            axis.plot([bar.low, bar.high], [place, place], color=_INK, linewidth=1.2, solid_capstyle="butt")  # type: ignore[attr-defined]
    for who, value in peers:
        axis.axvline(value, color=_PEER, linestyle=":", linewidth=1.2)  # type: ignore[attr-defined]
        axis.text(value, -0.75, who, color=_PEER, fontsize=7, rotation=30, ha="left", va="bottom")  # type: ignore[attr-defined]
    axis.set_yticks(places, [bar.name for bar in found])  # type: ignore[attr-defined]
    axis.invert_yaxis()  # type: ignore[attr-defined]
    values = [bar.value for bar in found] + [bar.low for bar in found if bar.low == bar.low]
    if min(values) >= 0:
        axis.set_xlim(left=0)  # type: ignore[attr-defined]
    else:
        axis.axvline(0, color=_INK, linewidth=0.8)  # type: ignore[attr-defined]
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)  # type: ignore[attr-defined]
    axis.tick_params(axis="y", length=0)  # type: ignore[attr-defined]
    axis.grid(axis="x", color="#e2e6ee", linewidth=0.8)  # type: ignore[attr-defined]
    axis.set_axisbelow(True)  # type: ignore[attr-defined]
    if name:
        # Above the names of published scores.
        axis.set_title(name, fontsize=9, color=_INK, loc="left", pad=24 if peers else 6)  # type: ignore[attr-defined]


def _svg(figure: object) -> str:
    """The element alone: its XML prologue and metadata name addresses, and a page holds neither."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)  # type: ignore[attr-defined]  # a Figure
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # Inside a page the parser knows these name spaces.
    return re.sub(r'\sxmlns(?::\w+)?="[^"]*"', "", text).replace("xlink:href=", "href=")
