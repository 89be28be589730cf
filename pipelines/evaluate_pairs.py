"""Rows of `protlat evaluate` for tasks of pairs: contact maps."""

from __future__ import annotations

from typing import Any

from protlat.evaluation.bootstrap import Score

from .evaluate_rows import LabelContext

PAIR_ROWS: tuple[str, ...] = ()


def score_pair_row(context: LabelContext, name: str) -> tuple[dict[str, dict[str, Score]], dict[str, Any]]:
    raise NotImplementedError
