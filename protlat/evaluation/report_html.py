"""The page of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from protlat.evaluation.bootstrap import Score
from protlat.evaluation.heldout import ALL
from protlat.evaluation.report_plots import Bar, bars
from protlat.evaluation.report_style import STYLE
from protlat.evaluation.results import (
    COMPOSITION_ROWS,
    MODEL_ROWS,
    ROWS,
    Comparison,
    RowResult,
    best_of,
    compare,
    is_higher_better,
    metric_title,
    split_rows,
)
from protlat.plotting import can_plot
from protlat.reporting import format_seconds

if TYPE_CHECKING:
    from protlat.evaluation.report import TaskResult

_MAX_CLASSES = 30


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
    body = [_head(facts, tasks), _summary(tasks)]
    if heldout is not None:
        body.append(_masked(heldout))
    body += [_task(task) for task in tasks]
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
        lines.append(_list("note", (f"left out: {name}: {why}" for name, why in facts["absent"].items())))
    return "".join(lines)


def _summary(tasks: Sequence[TaskResult]) -> str:
    tables = []
    for title, chosen in (
        ("Labels of proteins and residues", lambda t: t.row("majority") is not None or not (_is_pairs(t) or _is_ranked(t))),
        ("Contacts", _is_pairs),
        ("Effects of variants without training", _is_ranked),
    ):  # fmt: skip
        found = [task for task in tasks if task.rows and chosen(task)]
        if found:
            tables.append(f"<h3>{title}</h3>" + _summary_table(found, title.startswith("Effects")))
    key = (
        '<p class="key small soft"><span><b>bold</b>: best of the line</span><span>underlined: best baseline</span>'
        "<span><span class=up>&#9650;</span> <span class=even>&#9679;</span> <span class=down>&#9660;</span> better, not told "
        "apart, worse: 95 % interval of the paired difference over resampled proteins</span></p>"
    )
    return f"<section><h2>Summary</h2>{''.join(tables)}{key}</section>"


def _is_pairs(task: TaskResult) -> bool:
    return task.facts["type"] == "pair"


def _is_ranked(task: TaskResult) -> bool:
    return task.row("zero_shot") is not None or task.row("blosum62") is not None


def _summary_table(tasks: Sequence[TaskResult], ranked: bool) -> str:
    unsupervised = ("blosum62", "hydrophobicity", "zero_shot")
    names = [
        row for row in ROWS if any(task.row(row) is not None for task in tasks) and (row in unsupervised) == ranked
    ]
    base = "BLOSUM62" if ranked else "composition"
    lines = ["<tr><th>task</th><th>score</th>", *(_row_heading(name) for name in names)]
    lines.append(f"<th class=n>model - {base}</th><th class=n>model - best baseline</th></tr>")
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
            _cell(score, name in MODEL_ROWS, row is not None and row is best, row is not None and row is best_baseline)
        )
    # The frozen probe is what can be set against composition: both are linear.
    ours = by_name.get("probe") or best_of(models, split, metric)
    plain = next((by_name[name] for name in COMPOSITION_ROWS if name in by_name), None)
    cells.append(_marker(compare(ours, plain, split, metric)))
    cells.append(_marker(compare(best_of(models, split, metric), best_baseline, split, metric)))
    return "".join(cells) + "</tr>"


def _cell(score: Score | None, ours: bool, best: bool, top: bool) -> str:
    kinds = ["n", *(["ours"] if ours else []), *(["best"] if best else []), *(["top"] if top else [])]
    return f'<td class="{" ".join(kinds)}">{_score(score)}</td>'


def _score(score: Score | None) -> str:
    if score is None:
        return ""
    if math.isnan(score.value):
        return '<span class=soft title="not defined: a constant prediction, or one class only">n.d.</span>'
    text = f"{score.value:.3f}"
    return text if math.isnan(score.low) else f'{text}<span class="range">{score.low:.3f} to {score.high:.3f}</span>'


def _marker(found: Comparison | None) -> str:
    if found is None:
        return "<td class=n></td>"
    gain = found.gain
    kind, sign = ("up", "&#9650;") if gain.low > 0 else ("down", "&#9660;") if gain.high < 0 else ("even", "&#9679;")
    title = escape(f"{ROWS[found.ours.row][0]} against {ROWS[found.theirs.row][0]}")
    interval = "" if math.isnan(gain.low) else f'<span class="range">{gain.low:+.3f} to {gain.high:+.3f}</span>'
    if math.isnan(gain.low):
        kind, sign = "even", ""
    return f'<td class=n title="{title}"><span class={kind}>{sign} {gain.value:+.3f}</span>{interval}</td>'


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
                cells.append(_cell(Score.from_plain(scores[who][tag][metric]), who == "model", False, False))
        lines.append("".join(cells) + "</tr>")
    groups = [
        (
            tag,
            [
                Bar(names[who], *_ends(Score.from_plain(scores[who][tag]["accuracy"])), who == "model")
                for who in present
            ],
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


def _ends(score: Score) -> tuple[float, float, float]:
    return score.value, score.low, score.high


def _task(task: TaskResult) -> str:
    facts = task.facts
    parts = [
        f'<section id="{escape(task.name)}"><h2>{escape(facts["title"] or task.name)}<span class=tag>{escape(task.name)}</span>'
        f"<span class=tag>{escape(facts['type'].replace('_', ', '))}</span></h2>"
    ]
    for key in ("note", "source"):
        if facts[key]:
            parts.append(f"<p class='soft small'>{escape(facts[key])}</p>")
    if facts["warnings"]:
        parts.append(_list("warn", facts["warnings"]))
    if facts["notes"]:
        parts.append(_list("note", facts["notes"]))
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
        groups.append((split, [Bar(ROWS[row.row][0], *_ends(score), row.row in MODEL_ROWS) for row, score in scored]))
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
        cells = [_cell(found.get(m), ours, row is best[m], row is top[m]) for m in metrics]
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
    from protlat.errors import ConfigError

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
        facts = "; ".join(f"{key}: {_plain(value)}" for key, value in row.facts.items())
        steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in row.seconds.items())
        lines.append(
            f"<tr><td>{escape(ROWS[row.row][0])}</td><td>{escape(ROWS[row.row][1])}</td><td>{escape(facts)}</td><td>{escape(steps)}</td></tr>"
        )
    head = "<tr><th>row</th><th>what it is</th><th>how it was fitted</th><th>time</th></tr>"
    return f"<details><summary>how each row was made</summary><div class=scroll><table>{head}{''.join(lines)}</table></div></details>"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
    describe: Callable[[str], str] = lambda name: f"<li><b>{escape(ROWS[name][0])}</b>: {escape(ROWS[name][1])}</li>"  # noqa: E731
    settings = facts["settings"]
    lines = "".join(describe(name) for name in ROWS if name in settings["rows"])
    sample = settings["sample"]
    amounts = ", ".join(f"{name} {'all' if value is None else f'{value:,}'}" for name, value in sample.items())
    plain = "\n".join(f"{key}: {_plain(value)}" for key, value in settings.items())
    return (
        f"<section id=methods><h2>How it was done</h2><ul class='small'>{lines}</ul><p class='small'>Residues used of a split at "
        f"most: {escape(amounts)}, unless a task says otherwise below. Intervals are 95 % percentile intervals over "
        f"{settings['n_bootstrap']:,} resampled sets of proteins. Strengths, stopping points and thresholds are chosen on "
        "validation; where a line shows the best of several rows, that choice was made on the test itself.</p>"
        f"<details><summary>every setting</summary><pre class=small>{escape(plain)}</pre></details></section>"
    )


def _list(kind: str, lines: Iterable[str]) -> str:
    return f"<ul class={kind}>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
