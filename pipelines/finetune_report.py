"""What a fine-tuned model says of itself: scores with intervals beside a plain baseline, calibration, card, curve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protlat.evaluation.calibration import calibration_error, fit_temperature, fit_threshold, negative_log_likelihood
from protlat.evaluation.scores import DEFAULTS, metric, score
from protlat.files import atomic_path
from protlat.inference.label_prediction import decide
from protlat.models.head_file import HeadFile
from protlat.plotting import new_figure
from protlat.tasks.data import TRAIN, LabelledSplit, TaskData
from protlat.training.label_data import class_counts, value_scaling


def metric_names(task_type: str, first: str, further: Sequence[str]) -> tuple[str, ...]:
    """Metrics of a task, the one it is known by first."""
    return tuple(dict.fromkeys([first or DEFAULTS[task_type], *further]))


def score_outputs(
    head: HeadFile,
    split: LabelledSplit,
    outputs: Sequence[np.ndarray],
    names: Sequence[str],
    n_bootstrap: int,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Scores of one split by metric; `outputs` are (L, C) of each sequence, or (C,)."""
    labels: Any = split.labels
    return {
        name: score(name, labels, prediction_for(head, outputs, name), n_bootstrap=n_bootstrap, seed=seed).to_plain()
        for name in names
    }


def prediction_for(head: HeadFile, outputs: Sequence[np.ndarray], name: str) -> Any:
    """What a metric scores: values, probabilities or decisions, one array for all sequences or one for each."""
    per_residue = head.type.startswith("residue")
    lengths = [len(found) for found in outputs]
    answer = decide(head, np.concatenate(outputs) if per_residue else np.stack(outputs))
    if answer.values is not None:
        found: np.ndarray = answer.values
    else:
        wanted = answer.chosen if metric(name).needs == "class" else answer.probability
        assert wanted is not None
        found = wanted
    return np.split(found, np.cumsum(lengths)[:-1]) if per_residue else found


def baseline_outputs(head: HeadFile, data: TaskData, split: LabelledSplit) -> list[np.ndarray]:
    """Outputs of a predictor that knows nothing but the training labels: their shares, or their mean."""
    train = data.splits[TRAIN]
    if head.type.endswith("value"):
        output = np.array([value_scaling(train)[0]], np.float32)
    else:
        counts = class_counts(train, len(head.classes)).astype(np.float64)
        if head.type == "sequence_multilabel":
            output = np.log((counts + 0.5) / (len(train) - counts + 0.5))
        else:
            output = np.log((counts + 0.5) / (counts.sum() + 0.5 * len(counts)))
    if head.type.startswith("residue"):
        return [np.tile(output, (len(ids), 1)) for ids in split.ids]
    return [output] * len(split)


BASELINE_WORDS = {"value": "mean of the training set", "class": "majority class", "multilabel": "class frequencies"}


def calibrated(
    head: HeadFile, split: LabelledSplit, outputs: Sequence[np.ndarray], fit_t: bool, threshold: float | None
) -> tuple[HeadFile, dict[str, Any]]:
    """The head with temperature and threshold fitted on a split, and what that changed.

    Parameters
    ----------
    head : HeadFile
        Of a task of classes.
    split : LabelledSplit
    outputs : sequence of numpy.ndarray
        Of that split.
    fit_t : bool
        Fit a temperature.
    threshold : float or None
        Threshold to take; None: the one with the best F on the split.
    """
    per_residue = head.type.startswith("residue")
    logits = np.concatenate(outputs) if per_residue else np.stack(outputs)
    labels = np.concatenate([np.asarray(one) for one in split.labels]) if per_residue else np.asarray(split.labels)
    facts: dict[str, Any] = {}
    if fit_t:
        temperature = fit_temperature(logits, labels, head.type)
        hot = head.model_copy(update={"temperature": temperature})
        for word, each in (("before", head), ("after", hot)):
            facts[f"negative log-likelihood {word}"] = negative_log_likelihood(
                logits, labels, head.type, each.temperature
            )
            if labels.ndim == 1:
                probability = decide(each, logits).probability
                assert probability is not None
                facts[f"calibration error {word}"] = calibration_error(probability, labels)
        head = hot
    if threshold is None:
        probability = decide(head, logits).probability
        assert probability is not None
        threshold = fit_threshold(probability, labels)
    return head.model_copy(update={"threshold": threshold}), facts


def account_rows(head: HeadFile) -> dict[str, Any]:
    """Scores as rows of the closing account: the first metric of every split beside its baseline."""
    rows: dict[str, Any] = {}
    report = head.report
    for split, scores in report["scores"].items():
        name, own = next(iter(scores.items()))
        base = report["baseline"]["scores"][split][name]
        beside = "not defined" if base["value"] is None else f"{base['value']:.3f}"
        rows[f"{split} {name}"] = f"{score_text(own)}; {report['baseline']['kind']}: {beside}"
    return rows


def score_text(score_plain: dict[str, Any]) -> str:
    """A score with its interval: ``0.712 [0.700, 0.724]``."""
    if score_plain["value"] is None:
        return "not defined"
    text = f"{score_plain['value']:.3f}"
    return text if score_plain["low"] is None else f"{text} [{score_plain['low']:.3f}, {score_plain['high']:.3f}]"


def model_card(head: HeadFile, command: str, config_yaml: str, versions: dict[str, str]) -> str:
    """Model card in Markdown."""
    report = head.report
    lines = [
        "---", "library_name: protlat", "tags: [protein, linear-attention, fine-tuned]", "---", "",
        f"# {head.task}", "",
        f"A protlat encoder with a head for **{head.title or head.task}** ({head.type.replace('_', ', ')}), trained in mode "
        f"`{head.mode}`. Use it with `protlat predict -m FOLDER in.fasta -o out.tsv`.", "",
    ]  # fmt: skip
    if head.classes:
        shown = ", ".join(head.classes[:60]) + (" ..." if len(head.classes) > 60 else "")
        lines += [f"Classes ({len(head.classes)}): {shown}", ""]
    lines += [
        "## Scores", "", f"95 % intervals from resampled proteins; beside them the {report['baseline']['kind']}.", "",
        "| split | metric | this model | baseline |", "|---|---|---|---|",
    ]  # fmt: skip
    for split, scores in report["scores"].items():
        for name, own in scores.items():
            lines.append(
                f"| {split} | {name} | {score_text(own)} | {score_text(report['baseline']['scores'][split][name])} |"
            )
    lines += ["", "## Data", "", "| split | sequences | labels |", "|---|---:|---:|"]
    lines += [f"| {name} | {row['sequences']:,} | {row['labels']:,} |" for name, row in report["data"].items()]
    warnings = report.get("warnings", [])
    if warnings:
        lines += ["", "What the checks of the data found:", "", *(f"- {line}" for line in warnings)]
    lines += ["", "## Settings", "", f"`{command}`", "", "```yaml", config_yaml.rstrip(), "```", "", "## Versions", ""]
    lines += [f"- {name} {version}" for name, version in versions.items()]
    return "\n".join(lines) + "\n"


def draw_curve(path: str | Path, rows: list[dict[str, Any]], metric_name: str, baseline: float | None) -> None:
    """Draw training loss and validation score over steps to a PNG file."""
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval" and row.get("score") is not None]
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    axes.plot(
        [row["step"] for row in train],
        [row["loss"] for row in train],
        color="#9fb2cc",
        linewidth=0.8,
        label="training loss",
    )
    axes.set_xlabel("steps")
    axes.set_ylabel("training loss")
    lines, labels = axes.get_legend_handles_labels()
    if evaluations:
        right = axes.twinx()
        right.plot(
            [row["step"] for row in evaluations], [row["score"] for row in evaluations], "o-", color="#c4501b",
            markersize=3, label=f"validation {metric_name}",
        )  # fmt: skip
        best = [row for row in evaluations if row["best"]]
        if best:
            right.plot(best[-1]["step"], best[-1]["score"], "*", color="#7d2d08", markersize=11, label="kept")
        if baseline is not None:
            right.axhline(baseline, color="#555555", linestyle=":", linewidth=1, label="baseline")
        right.set_ylabel(f"validation {metric_name}")
        more = right.get_legend_handles_labels()
        lines, labels = [*lines, *more[0]], [*labels, *more[1]]
    axes.legend(lines, labels, frameon=False, fontsize=8, loc="center right")
    axes.spines[["top"]].set_visible(False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary)
