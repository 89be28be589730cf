"""The summary of the report: tasks against rows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from protlat.evaluation.report_cells import gain_cell, score_cell
from protlat.evaluation.results import (
    COMPOSITION_ROWS,
    MODEL_ROWS,
    ROWS,
    UNTRAINED,
    RowResult,
    best_of,
    compare,
    is_higher_better,
    metric_title,
    split_rows,
)

if TYPE_CHECKING:
    from protlat.evaluation.report import TaskResult


def summary_section(tasks: Sequence[TaskResult]) -> str:
    """Tables of tasks against rows, by kind of task."""
    tables = []
    for title, chosen, base in (
        ("Labels of proteins and residues", _has_labels, "composition"),
        ("Contacts", _is_pairs, "separation"),
        ("Effects of variants without training", _is_ranked, "BLOSUM62"),
    ):
        found = [task for task in tasks if task.rows and chosen(task)]
        if found:
            tables.append(f"<h3>{title}</h3>" + _summary_table(found, base))
    key = (
        '<p class="key small soft"><span><b>bold</b>: best of the line</span><span>underlined: best baseline</span><span>published: the best on the same data</span>'
        "<span><span class=up>&#9650;</span> <span class=even>&#9679;</span> <span class=down>&#9660;</span> better, not told "
        "apart, worse: 95 % interval of the paired difference over resampled proteins</span></p>"
    )
    return f"<section><h2>Summary</h2>{''.join(tables)}{key}</section>"


def _is_pairs(task: TaskResult) -> bool:
    return task.facts["type"] == "pair"


def _has_labels(task: TaskResult) -> bool:
    return not _is_pairs(task) and any(row.row not in UNTRAINED for row in task.rows)


def _is_ranked(task: TaskResult) -> bool:
    return any(row.row in UNTRAINED for row in task.rows)


def _summary_table(tasks: Sequence[TaskResult], base: str) -> str:
    ranked = base == "BLOSUM62"
    names = [row for row in ROWS if any(task.row(row) is not None for task in tasks) and (row in UNTRAINED) == ranked]
    lines = ["<tr><th>task</th><th>score</th>", *(_row_heading(name) for name in names)]
    lines.append(
        f"<th class=n>model - {base}</th><th class=n>model - best baseline</th><th class=n>published</th></tr>"
    )
    for task in tasks:
        for split in task.splits:
            rows = [row for row in task.rows if row.row in names and split in row.scores]
            if rows:
                lines.append(_summary_line(task, split, rows, names))
    return f"<div class=scroll><table>{''.join(lines)}</table></div>"


def _row_heading(name: str) -> str:
    kind = " ours" if name in MODEL_ROWS else ""
    return f'<th class="n{kind}" title="{escape(ROWS[name][1])}">{escape(ROWS[name][0])}</th>'


def _summary_line(task: TaskResult, split: str, rows: Sequence[RowResult], names: Sequence[str]) -> str:
    metric = next(iter(rows[0].scores[split]))
    baselines, models = split_rows(rows)
    best, best_baseline = best_of(rows, split, metric), best_of(baselines, split, metric)
    by_name = {row.row: row for row in rows}
    label = f'<a href="#{escape(task.name)}">{escape(task.name)}</a>'
    if len(task.splits) > 1 or split != "test":
        label += f'<span class="range">{escape(split)}</span>'
    cells = [f"<tr><td>{label}</td><td>{escape(metric_title(metric))}</td>"]
    for name in names:
        row = by_name.get(name)
        score = row.scores[split].get(metric) if row else None
        cells.append(
            score_cell(
                score, name in MODEL_ROWS, row is not None and row is best, row is not None and row is best_baseline
            )
        )
    # The frozen probe is what can be set against composition: both are linear.
    ours = by_name.get("probe") or best_of(models, split, metric)
    plain = next((by_name[name] for name in COMPOSITION_ROWS if name in by_name), None)
    cells.append(gain_cell(compare(ours, plain, split, metric)))
    cells.append(gain_cell(compare(best_of(models, split, metric), best_baseline, split, metric)))
    return "".join(cells) + _published_cell(task, split, metric) + "</tr>"


def _published_cell(task: TaskResult, split: str, metric: str) -> str:
    """The best of what others report for the same training data and test."""
    sign = 1 if is_higher_better(metric) else -1
    same = [p for p in task.facts["published"] if p["comparable"] and (p["metric"], p["split"]) == (metric, split)]
    if not same:
        return "<td></td>"
    best = max(same, key=lambda item: sign * float(item["value"]))
    return f'<td class=n title="{escape(best["source"])}">{best["value"]:.3f}<span class="range">{escape(best["who"])}</span></td>'
