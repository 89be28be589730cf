"""The page of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from protlat.evaluation.bootstrap import Score
from protlat.evaluation.heldout import ALL
from protlat.evaluation.report_cells import bullet_list, ends, plain_text, score_cell
from protlat.evaluation.report_plots import Bar, bars
from protlat.evaluation.report_style import STYLE
from protlat.evaluation.report_summary import summary_section
from protlat.evaluation.report_task import task_section
from protlat.evaluation.results import ROWS
from protlat.reporting import format_seconds

if TYPE_CHECKING:
    from protlat.evaluation.report import TaskResult


def page(facts: dict[str, Any], tasks: Sequence[TaskResult], heldout: dict[str, Any] | None) -> str:
    """The whole page.

    Parameters
    ----------
    facts : dict
        About the run.
    tasks : sequence of TaskResult
    heldout : dict or None
        Masked-language scores.
    """
    body = [_head(facts, tasks), summary_section(tasks)]
    if heldout is not None:
        body.append(_masked(heldout))
    body += [task_section(task) for task in tasks]
    body += [_times(tasks, heldout), _methods(facts)]
    title = f"protlat evaluate: {facts['model']}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _head(facts: dict[str, Any], tasks: Sequence[TaskResult]) -> str:
    shown = {
        "parameters": f"{facts['parameters']:,}",
        "width x layers": f"{facts['d_model']} x {facts['n_layers']}",
        "weights": facts["model_hash"][:12],
        "tasks": str(len(tasks)),
        "device": facts["device"],
        "protlat": facts["protlat"],
        "time of this run": format_seconds(facts["seconds"]),
    }
    items = "".join(
        f"<li><span class=soft>{escape(key)}</span> <b>{escape(value)}</b></li>" for key, value in shown.items()
    )
    lines = [
        f"<h1>{escape(facts['model'])}</h1>",
        "<p class=soft>Scores on tests, beside baselines that know less.</p>",
    ]
    lines.append(f"<ul class=facts>{items}</ul>")
    for fault in facts["failed"]:
        lines.append(
            f"<div class=error>{escape(fault['task'])}, {escape(fault['row'])}: {escape(fault['error'])}</div>"
        )
    if facts["absent"]:
        lines.append(bullet_list("note", (f"left out: {name}: {why}" for name, why in facts["absent"].items())))
    return "".join(lines)


def _masked(heldout: dict[str, Any]) -> str:
    scores = heldout["scores"]
    names = {"model": "this model", "trigram": "trigram", "frequencies": "frequencies"}
    present = [who for who in names if who in scores]
    head = "".join(
        f'<th class="n{" ours" if who == "model" else ""}">{names[who]}, {metric}</th>'
        for metric in ("accuracy", "perplexity") for who in present
    )  # fmt: skip
    lines = [f"<tr><th>source</th><th class=n>proteins</th><th class=n>positions</th>{head}</tr>"]
    for tag, found in scores["model"].items():
        cells = [
            f"<tr><td>{escape(tag)}</td><td class=n>{found['accuracy']['n_examples']:,}</td><td class=n>{found['accuracy']['n_labels']:,}</td>"
        ]
        for metric in ("accuracy", "perplexity"):
            for who in present:
                cells.append(score_cell(Score.from_plain(scores[who][tag][metric]), who == "model", False, False))
        lines.append("".join(cells) + "</tr>")
    groups = [
        (
            tag,
            [Bar(names[who], *ends(Score.from_plain(scores[who][tag]["accuracy"])), who == "model") for who in present],
        )
        for tag in [ALL]
        if tag in scores["model"]
    ]
    floors = (
        f" Floors are counted from {heldout['n_counted']:,} residues of the training split."
        if heldout["n_counted"]
        else ""
    )
    return (
        "<section id=heldout><h2>Masked residues of held-out proteins</h2><p class=soft>Share of hidden residues that are guessed "
        f"right, and perplexity, on {heldout['n_sequences']:,} proteins of {escape(heldout['shards'])}.{floors}</p>"
        f"{bars('accuracy', groups)}<div class=scroll><table>{''.join(lines)}</table></div></section>"
    )


def _times(tasks: Sequence[TaskResult], heldout: dict[str, Any] | None) -> str:
    names = [row for row in ROWS if any(task.row(row) is not None for task in tasks)]
    head = "".join(f"<th class=n>{escape(ROWS[name][0])}</th>" for name in names)
    lines = [f"<tr><th>task</th><th class=n>reading</th>{head}<th class=n>all</th></tr>"]
    totals = [0.0] * (len(names) + 2)
    for task in tasks:
        reading = sum(task.facts["seconds"].values())
        by_row = [sum(row.seconds.values()) if (row := task.row(name)) else 0.0 for name in names]
        values = [reading, *by_row, reading + sum(by_row)]
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        lines.append(_time_line(escape(task.name), values))
    if heldout is not None:
        seconds = sum(heldout["seconds"].values())
        lines.append(_time_line("masked residues", [0.0] * (len(names) + 1) + [seconds]))
        totals[-1] += seconds
    lines.append(_time_line("<b>all</b>", totals))
    steps: dict[str, float] = {}
    for task in tasks:
        for row in task.rows:
            for name, seconds in row.seconds.items():
                steps[name] = steps.get(name, 0.0) + seconds
    by_step = ", ".join(
        f"{name} {format_seconds(seconds)}" for name, seconds in sorted(steps.items(), key=lambda p: -p[1])
    )
    cpu_s = sum(row.cpu_s for task in tasks for row in task.rows)
    return (
        "<section id=time><h2>Where the time goes</h2><p class='soft small'>Seconds by task and row, of the run that computed "
        f"them. By step: {escape(by_step)}. Processor time of all rows, threads added up: {format_seconds(cpu_s)}.</p><div class=scroll><table>{''.join(lines)}</table></div></section>"
    )


def _time_line(name: str, values: Iterable[float]) -> str:
    return f"<tr><td>{name}</td>{''.join(f'<td class=n>{value:,.1f}</td>' if value else '<td></td>' for value in values)}</tr>"


def _methods(facts: dict[str, Any]) -> str:
    settings = facts["settings"]
    lines = "".join(
        f"<li><b>{escape(ROWS[name][0])}</b>: {escape(ROWS[name][1])}</li>" for name in ROWS if name in settings["rows"]
    )
    sample = settings["sample"]
    amounts = ", ".join(f"{name} {'all' if value is None else f'{value:,}'}" for name, value in sample.items())
    plain = "\n".join(f"{key}: {plain_text(value)}" for key, value in settings.items())
    return (
        f"<section id=methods><h2>How it was done</h2><ul class='small'>{lines}</ul><p class='small'>Residues used of a split at "
        f"most: {escape(amounts)}, unless a task says otherwise below. Intervals are 95 % percentile intervals over "
        f"{settings['n_bootstrap']:,} resampled sets of proteins. Strengths, stopping points and thresholds are chosen on "
        "validation; where a line shows the best of several rows, that choice was made on the test itself.</p>"
        f"<details><summary>every setting</summary><pre class=small>{escape(plain)}</pre></details></section>"
    )
