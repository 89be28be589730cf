"""The section of one task in the report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from protlat.errors import ConfigError
from protlat.evaluation.report_cells import bullet_list, ends, plain_text, score_cell
from protlat.evaluation.report_plots import Bar, bars
from protlat.evaluation.results import MODEL_ROWS, ROWS, best_of, is_higher_better, metric_title, split_rows
from protlat.plotting import can_plot
from protlat.reporting import format_seconds

if TYPE_CHECKING:
    from protlat.evaluation.report import TaskResult

_MAX_CLASSES = 30


def task_section(task: TaskResult) -> str:
    """Everything about one task."""
    facts = task.facts
    parts = [
        f'<section id="{escape(task.name)}"><h2>{escape(facts["title"] or task.name)}<span class=tag>{escape(task.name)}</span>'
        f"<span class=tag>{escape(facts['type'].replace('_', ', '))}</span></h2>"
    ]
    for key in ("note", "source"):
        if facts[key]:
            parts.append(f"<p class='soft small'>{escape(facts[key])}</p>")
    if facts["warnings"]:
        parts.append(bullet_list("warn", facts["warnings"]))
    if facts["notes"]:
        parts.append(bullet_list("note", facts["notes"]))
    parts += [_task_plot(task), *(_score_table(task, split) for split in task.splits)]
    parts += [_published(facts["published"]), _splits(facts), _details(task)]
    return "".join(parts) + "</section>"


def _task_plot(task: TaskResult) -> str:
    groups = []
    title = ""
    for split in task.splits:
        metric = task.metrics(split)[0]
        title = metric_title(metric)
        scored = [(row, row.scores[split][metric]) for row in task.rows if metric in row.scores.get(split, {})]
        groups.append((split, [Bar(ROWS[row.row][0], *ends(score), row.row in MODEL_ROWS) for row, score in scored]))
    metric = task.facts["metric"]
    peers = [(p["who"], p["value"]) for p in task.facts["published"] if p["comparable"] and p["metric"] == metric]
    if not can_plot():
        return "<p class='soft small'>No plot: matplotlib is not installed (pip install 'protlat[plot]').</p>"
    return bars(title, groups, peers)


def _score_table(task: TaskResult, split: str) -> str:
    metrics = task.metrics(split)
    head = "".join(f"<th class=n>{escape(metric_title(name))}{_arrow(name)}</th>" for name in metrics)
    lines = [f"<tr><th>{escape(split)}</th>{head}<th class=n>time</th></tr>"]
    best = {name: best_of(task.rows, split, name) for name in metrics}
    top = {name: best_of(split_rows(task.rows)[0], split, name) for name in metrics}
    n_examples = n_labels = 0
    for row in task.rows:
        found = row.scores.get(split)
        if found is None:
            continue
        first = next(iter(found.values()))
        n_examples, n_labels = max(n_examples, first.n_examples), max(n_labels, first.n_labels)
        ours = row.row in MODEL_ROWS
        name = f'<td{" class=ours" if ours else ""} title="{escape(ROWS[row.row][1])}">{escape(ROWS[row.row][0])}</td>'
        cells = [score_cell(found.get(m), ours, row is best[m], row is top[m]) for m in metrics]
        lines.append(f"<tr>{name}{''.join(cells)}<td class=n>{format_seconds(sum(row.seconds.values()))}</td></tr>")
    of = f"{n_examples:,} proteins" + (f", {n_labels:,} labels" if n_labels != n_examples else "")
    return f"<div class=scroll><table>{''.join(lines)}</table></div><p class='soft small'>{escape(split)}: {of}</p>"


def _arrow(name: str) -> str:
    return "" if is_higher_better(name) else " (lower is better)"


def _published(items: Sequence[dict[str, Any]]) -> str:
    if not items:
        return ""
    lines = [
        "<tr><th>published</th><th class=n>value</th><th>score</th><th>split</th><th>comparable</th><th>source</th></tr>"
    ]
    for item in sorted(items, key=lambda one: (not one["comparable"], one["metric"], one["value"])):
        yes = "yes" if item["comparable"] else "no"
        note = f": {item['note']}" if item["note"] else ""
        lines.append(
            f"<tr><td>{escape(item['who'])}</td><td class=n>{item['value']:.3f}</td><td>{escape(_metric_or_name(item['metric']))}</td>"
            f"<td>{escape(item['split'])}</td><td>{escape(yes + note)}</td><td>{escape(item['source'])}</td></tr>"
        )
    return f"<h3>What others report</h3><div class=scroll><table>{''.join(lines)}</table></div>"


def _metric_or_name(name: str) -> str:
    try:
        return metric_title(name)
    except ConfigError:
        # Others score by what protlat has no name for.
        return name


def _splits(facts: dict[str, Any]) -> str:
    lines = ["<tr><th>split</th><th class=n>proteins</th><th class=n>residues</th><th>labels</th></tr>"]
    for name, split in facts["splits"].items():
        if "mean" in split:
            labels = f"{split['low']:.3g} to {split['high']:.3g}, mean {split['mean']:.3g}"
        else:
            labels = f"{sum(split['classes']):,}" if "classes" in split else ""
        lines.append(
            f"<tr><td>{escape(name)}</td><td class=n>{split['proteins']:,}</td><td class=n>{split['residues']:,}</td><td>{labels}</td></tr>"
        )
    table = f"<div class=scroll><table>{''.join(lines)}</table></div>"
    return f"<h3>Data</h3>{table}{_classes(facts)}"


def _classes(facts: dict[str, Any]) -> str:
    classes = facts["classes"]
    counts = {name: split["classes"] for name, split in facts["splits"].items() if "classes" in split}
    if not classes or not counts:
        return ""
    first = next(iter(counts.values()))
    order = sorted(range(len(classes)), key=lambda code: -first[code])[:_MAX_CLASSES]
    head = "".join(f"<th>{escape(name)}</th>" for name in counts)
    lines = [f"<tr><th>class</th>{head}</tr>"]
    totals = {name: max(sum(found), 1) for name, found in counts.items()}
    for code in order:
        cells = "".join(_share(found[code], totals[name]) for name, found in counts.items())
        lines.append(f"<tr><td>{escape(classes[code])}</td>{cells}</tr>")
    more = (
        f"<p class='soft small'>and {len(classes) - len(order):,} rarer classes</p>"
        if len(classes) > len(order)
        else ""
    )
    return f"<details><summary>labels by class</summary><div class=scroll><table>{''.join(lines)}</table></div>{more}</details>"


def _share(count: int, total: int) -> str:
    width = round(90 * count / total, 1)
    return f'<td><span class=share style="width:{width}px"></span>{count:,} ({count / total:.1%})</td>'


def _details(task: TaskResult) -> str:
    lines = []
    for row in task.rows:
        facts = "; ".join(f"{key}: {plain_text(value)}" for key, value in row.facts.items())
        steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in row.seconds.items())
        lines.append(
            f"<tr><td>{escape(ROWS[row.row][0])}</td><td>{escape(ROWS[row.row][1])}</td><td>{escape(facts)}</td><td>{escape(steps)}</td></tr>"
        )
    head = "<tr><th>row</th><th>what it is</th><th>how it was fitted</th><th>time</th></tr>"
    return f"<details><summary>how each row was made</summary><div class=scroll><table>{head}{''.join(lines)}</table></div></details>"
