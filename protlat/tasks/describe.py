"""What `protlat info` tells of a task."""

from __future__ import annotations

from typing import Any

import numpy as np

from protlat.tasks.checks import class_counts
from protlat.tasks.config import Published
from protlat.tasks.data import LabelledSplit
from protlat.tasks.load import LoadedTask, load_task

_SHOWN_CLASSES = 30


def describe_task(task: str, data: str | None = None) -> dict[str, Any]:
    """Splits, labels, checks and published scores of a task, as nested plain values.

    Raises
    ------
    ConfigError
        The task is unknown or its settings do not fit.
    SequenceError
        A file is missing or damaged, or its records do not fit the settings.
    """
    return described(load_task(task, data))


def described(loaded: LoadedTask) -> dict[str, Any]:
    """`describe_task` of a task that is loaded."""
    config, data = loaded.config, loaded.data
    values: dict[str, Any] = {
        "kind": "protlat task",
        "name": config.name,
        "title": config.title,
        "type": config.type,
        "score": config.metric,
        "further scores": list(config.metrics),
    }
    if data.classes:
        values["classes"] = len(data.classes)
    if config.source:
        values["source"] = config.source
    if config.note:
        values["note"] = config.note
    if loaded.notes:
        values["how it was split"] = list(loaded.notes)
    values["splits"] = {name: _split(split) for name, split in data.splits.items()}
    labels = _labels(loaded)
    if labels:
        values["labels"] = labels
    values["checks"] = {f"{number}": text for number, text in enumerate(data.warnings, start=1)} or {
        "": "nothing found"
    }
    if loaded.neighbours:
        values["nearest in train (identity that shared words suggest)"] = {
            name: _nearness(facts) for name, facts in loaded.neighbours.items()
        }
    values["account"] = _account(loaded)
    if config.published:
        values["published"] = _published(config.published)
    return values


def _published(entries: tuple[Published, ...]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        remark = entry.source if entry.comparable else f"{entry.source}; not comparable"
        shown = f"{entry.value:g}  {remark}" + (f": {entry.note}" if entry.note else "")
        found.setdefault(f"{entry.metric} on {entry.split}", {})[entry.who] = shown
    return found


def _nearness(facts: dict[str, Any]) -> dict[str, int | float]:
    counts = {"compared": facts["n_compared"], "too short": facts["n_too_short"], "near": facts["n_near"]}
    return counts | dict(facts["nearest_identity_histogram"])


def _split(split: LabelledSplit) -> dict[str, int | float]:
    lengths = np.fromiter(map(len, split.ids), dtype=np.int64, count=len(split))
    return {
        "proteins": len(split),
        "residues": split.n_residues,
        "shortest": int(lengths.min()),
        "mean length": round(float(lengths.mean()), 1),
        "longest": int(lengths.max()),
    }


def _labels(loaded: LoadedTask) -> dict[str, Any]:
    config, data = loaded.config, loaded.data
    if config.type == "pair":
        return {}
    if config.has_classes:
        return _class_table(loaded)
    return {name: _value_facts(split) for name, split in data.splits.items()}


def _class_table(loaded: LoadedTask) -> dict[str, dict[str, int]]:
    data = loaded.data
    counts = {name: class_counts(loaded.config, data, split) for name, split in data.splits.items()}
    total = {label: sum(one.get(label, 0) for one in counts.values()) for label in data.classes}
    shown = list(data.classes)
    if len(shown) > _SHOWN_CLASSES:
        shown = sorted(shown, key=lambda label: -total[label])[:_SHOWN_CLASSES]
    table = {label: {name: one.get(label, 0) for name, one in counts.items()} for label in shown}
    if len(shown) < len(data.classes):
        chosen = set(shown)
        rest = {name: sum(n for label, n in one.items() if label not in chosen) for name, one in counts.items()}
        table[f"{len(data.classes) - len(shown):,} others"] = rest
    return table


def _value_facts(split: LabelledSplit) -> dict[str, int | float]:
    flat = (
        split.labels
        if isinstance(split.labels, np.ndarray)
        else np.concatenate([np.asarray(one) for one in split.labels])
    )
    flat = flat[~np.isnan(flat)].astype(np.float64)
    names = ("lowest", "quarter", "median", "three quarters", "highest")
    points = np.quantile(flat, (0, 0.25, 0.5, 0.75, 1)).tolist()
    facts: dict[str, int | float] = {"labels": len(flat), "mean": float(flat.mean()), "deviation": float(flat.std())}
    return facts | dict(zip(names, points, strict=True))


def _account(loaded: LoadedTask) -> dict[str, Any]:
    report, account = loaded.report, loaded.account
    values: dict[str, Any] = {"records read": report.n_records, "records kept": report.n_kept}
    values |= {f"left out: {reason}": count for reason, count in report.reasons.items()}
    values |= {name: count for name, count in report.changes.items() if count}
    if report.unknown:
        values["letters beyond the 20 residues"] = ", ".join(f"{letter} {n:,}" for letter, n in report.unknown.items())
    if account.left_out:
        shown = ", ".join(f"{label!r} {n:,}" for label, n in account.left_out.most_common(10))
        values["labels left out by label_map"] = shown
    if account.n_unknown:
        values["residues without label"] = account.n_unknown
    if account.n_masked:
        values["residues masked"] = account.n_masked
    if account.n_elsewhere:
        values[f"residues other than {loaded.config.restrict}"] = account.n_elsewhere
    return values
