"""Small pieces of the report."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Any

from protlat.evaluation.bootstrap import Score
from protlat.evaluation.results import ROWS, Comparison


def score_cell(score: Score | None, ours: bool, best: bool, top: bool) -> str:
    """A cell of a table: `best` of its line, `top` among baselines."""
    kinds = ["n", *(["ours"] if ours else []), *(["best"] if best else []), *(["top"] if top else [])]
    return f'<td class="{" ".join(kinds)}">{score_text(score)}</td>'


def score_text(score: Score | None) -> str:
    """Value over interval."""
    if score is None:
        return ""
    if math.isnan(score.value):
        return '<span class=soft title="not defined: a constant prediction, or one class only">n.d.</span>'
    text = f"{score.value:.3f}"
    return text if math.isnan(score.low) else f'{text}<span class="range">{score.low:.3f} to {score.high:.3f}</span>'


def gain_cell(found: Comparison | None) -> str:
    """How much better one row is than another, with a sign."""
    if found is None:
        return "<td class=n></td>"
    gain = found.gain
    kind, sign = ("up", "&#9650;") if gain.low > 0 else ("down", "&#9660;") if gain.high < 0 else ("even", "&#9679;")
    title = escape(f"{ROWS[found.ours.row][0]} against {ROWS[found.theirs.row][0]}")
    interval = "" if math.isnan(gain.low) else f'<span class="range">{gain.low:+.3f} to {gain.high:+.3f}</span>'
    if math.isnan(gain.low):
        kind, sign = "even", ""
    return f'<td class=n title="{title}"><span class={kind}>{sign} {gain.value:+.3f}</span>{interval}</td>'


def ends(score: Score) -> tuple[float, float, float]:
    """Value and interval."""
    return score.value, score.low, score.high


def plain_text(value: Any) -> str:
    """A plain value on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain_text(item)}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def bullet_list(kind: str, lines: Iterable[str]) -> str:
    """An unnumbered list of texts."""
    return f"<ul class={kind}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
