"""What an evaluation found, as a page, a table and JSON, from the rows in its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protlat.evaluation.bootstrap import Score
from protlat.evaluation.report_html import page
from protlat.evaluation.results import HELDOUT_FILE, ROWS, ROWS_FOLDER, TASK_FILE, RowResult, is_higher_better
from protlat.files import atomic_path, write_json, write_text

COLUMNS = (
    "task", "split", "row", "metric", "higher_is_better", "value", "low", "high", "n_examples", "n_labels", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class TaskResult:
    """All rows of one task.

    Attributes
    ----------
    facts : dict
        What ``task.json`` says: title, splits, published scores, warnings.
    rows : tuple of RowResult
        In the order of reports.
    """

    facts: dict[str, Any]
    rows: tuple[RowResult, ...]

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def splits(self) -> list[str]:
        """Test splits with a score."""
        return list(dict.fromkeys(split for row in self.rows for split in row.scores))

    def metrics(self, split: str) -> list[str]:
        """Metrics of a split, the task's own first."""
        return list(dict.fromkeys(name for row in self.rows for name in row.scores.get(split, {})))

    def row(self, name: str) -> RowResult | None:
        """A row by name."""
        return next((row for row in self.rows if row.row == name), None)


def read_task_result(folder: Path, name: str) -> TaskResult | None:
    """What is known of a task; None where it has not been read yet."""
    try:
        facts = json.loads((folder / ROWS_FOLDER / name / TASK_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = (RowResult.read(folder / ROWS_FOLDER / name / f"{row}.json") for row in ROWS if row in facts["rows"])
    return TaskResult(facts, tuple(row for row in found if row is not None))


def write_report(folder: Path, facts: dict[str, Any], tasks: Sequence[str]) -> None:
    """Write ``report.html``, ``scores.json`` and ``scores.tsv`` from the rows that are there.

    Parameters
    ----------
    folder : Path
        Output folder of an evaluation.
    facts : dict
        About the run: model, settings, time, what failed.
    tasks : sequence of str
        Tasks to show, in this order.
    """
    results = [found for name in tasks if (found := read_task_result(folder, name)) is not None]
    heldout = _heldout(folder)
    write_json(folder / "scores.json", scores_plain(results, heldout, facts))
    write_table(folder / "scores.tsv", results, heldout)
    write_text(folder / "report.html", page(facts, results, heldout))


def _heldout(folder: Path) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads((folder / HELDOUT_FILE).read_text(encoding="utf-8"))
        return values if values.get("scores") else None
    except (OSError, ValueError, AttributeError):
        return None


def scores_plain(
    results: Sequence[TaskResult], heldout: dict[str, Any] | None, facts: dict[str, Any]
) -> dict[str, Any]:
    """Every score as nested plain values."""
    tasks = {}
    for task in results:
        tasks[task.name] = {
            "title": task.facts["title"],
            "type": task.facts["type"],
            "metric": task.facts["metric"],
            "splits": task.facts["splits"],
            "published": task.facts["published"],
            "warnings": task.facts["warnings"],
            "rows": {
                row.row: {
                    "scores": {
                        split: {name: score.to_plain() for name, score in by_metric.items()}
                        for split, by_metric in row.scores.items()
                    },
                    "seconds": row.seconds,
                    "facts": row.facts,
                }
                for row in task.rows
            },
        }
    return {"run": facts, "heldout": heldout, "tasks": tasks}


def write_table(path: Path, results: Sequence[TaskResult], heldout: dict[str, Any] | None) -> None:
    """One line per task, split, row and metric, tab-separated; empty cells where nothing is defined."""
    lines = ["\t".join(COLUMNS)]
    for task in results:
        for row in task.rows:
            for split, by_metric in row.scores.items():
                for name, score in by_metric.items():
                    cells = [task.name, split, row.row, name, str(is_higher_better(name)).lower(), *_cells(score)]
                    lines.append("\t".join([*cells, f"{sum(row.seconds.values()):.1f}"]))
    for who, by_tag in (heldout or {}).get("scores", {}).items():
        for tag, by_metric in by_tag.items():
            for name, plain in by_metric.items():
                numbers = [_text(plain[key]) for key in ("value", "low", "high")]
                counts = [str(plain["n_examples"]), str(plain["n_labels"])]
                better = "false" if name == "perplexity" else "true"
                lines.append("\t".join(["masked_language", tag, who, name, better, *numbers, *counts, ""]))
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cells(score: Score) -> list[str]:
    numbers = [_text(None if math.isnan(value) else value) for value in (score.value, score.low, score.high)]
    return [*numbers, str(score.n_examples), str(score.n_labels)]


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
