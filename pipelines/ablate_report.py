"""The report of an ablation: one table, one picture, all figures as JSON."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from protlat.files import atomic_path, format_bytes, write_json, write_text
from protlat.plotting import can_plot, new_figure
from protlat.reporting import format_count

from .ablate_config import AblateConfig

_LN2 = math.log(2)


def write_report(
    folder: Path, config: AblateConfig, records: list[dict[str, Any]], times: dict[str, Any]
) -> list[Path]:
    """Write ``results.json``, ``report.md`` and, where matplotlib is installed, ``curves.png``.

    Parameters
    ----------
    folder : Path
    config : AblateConfig
    records : list of dict
        Finished runs: ``variant``, ``seed``, ``parameters``, ``peak_memory_bytes``, ``rows`` (evaluations), ``tokens``,
        ``train_s``.
    times : dict
        See `ablate_timing.measure`.

    Returns
    -------
    list of Path
        What was written.
    """
    summary = summarise(config, records, times)
    files = [folder / "results.json", folder / "report.md"]
    write_json(files[0], {"variants": summary, "timing": {k: v for k, v in times.items() if k != "key"}})
    write_text(files[1], _markdown(config, summary, times))
    if can_plot() and summary:
        files.append(folder / "curves.png")
        _picture(files[-1], summary, times)
    return files


def summarise(config: AblateConfig, records: list[dict[str, Any]], times: dict[str, Any]) -> dict[str, Any]:
    """Figures of every variant that has at least one finished run.

    The loss at equal time is read off the curve of evaluations, in a straight line between two of them, at the moment
    when the fastest variant would stand at the last evaluation before its learning rate falls: all curves are there
    at the same high rate. Time is tokens times the measured seconds per token.
    """
    cost = times["seconds_per_token"]
    stable = _stable_share(config)
    by_variant = {name: [r for r in records if r["variant"] == name] for name in config.variants}
    by_variant = {name: rows for name, rows in by_variant.items() if rows}
    if not by_variant:
        return {}
    equal_s = min(stable * rows[0]["tokens"] * cost[name] for name, rows in by_variant.items())
    reference = {r["seed"]: _final(r)["loss"] for r in next(iter(by_variant.values()))}
    out = {}
    for name, rows in by_variant.items():
        finals = {r["seed"]: _final(r) for r in rows}
        losses = [final["loss"] for final in finals.values()]
        shared = [finals[seed]["loss"] - reference[seed] for seed in finals if seed in reference]
        curves = {str(r["seed"]): _curve(r) for r in rows}
        out[name] = {
            "parameters": rows[0]["parameters"],
            "tokens": rows[0]["tokens"],
            "loss": statistics.mean(losses),
            "loss_by_seed": {str(seed): final["loss"] for seed, final in finals.items()},
            "difference": statistics.mean(shared) if shared else None,
            "difference_by_seed": shared,
            "accuracy": statistics.mean(final["accuracy"] for final in finals.values()),
            "loss_at_equal_time": statistics.mean(_at(curve, equal_s / cost[name]) for curve in curves.values()),
            "equal_time_s": equal_s,
            "tokens_per_s": 1 / cost[name],
            "trained_tokens_per_s": statistics.mean(r["tokens"] / r["train_s"] for r in rows),
            "peak_memory_bytes": statistics.median(r["peak_memory_bytes"] for r in rows),
            "curves": curves,
        }
    return out


def _stable_share(config: AblateConfig) -> float:
    schedule = config.base.get("schedule", {})
    return 1 - schedule.get("decay", 0.2) if schedule.get("kind") == "wsd" else 1.0


def _final(record: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in reversed(record["rows"]) if row["whole"])


def _curve(record: dict[str, Any]) -> list[list[float]]:
    """Tokens read and validation loss at every evaluation during the run."""
    return [[row["tokens"], row["loss"]] for row in record["rows"] if not row["whole"]]


def _at(curve: list[list[float]], tokens: float) -> float:
    return float(np.interp(tokens, [x for x, _ in curve], [y for _, y in curve]))


def _markdown(config: AblateConfig, summary: dict[str, Any], times: dict[str, Any]) -> str:
    if not summary:
        return "No run is finished yet.\n"
    first = next(iter(summary))
    lines = [
        f"{len(config.seeds)} seeds, {format_count(next(iter(summary.values()))['tokens'])} tokens each. Loss in nats "
        f"per predicted token on the whole validation split; its difference from `{first}` with the same seed, mean and "
        f"each. Speed: forward and backward of {times['n_tokens']:,} tokens in alternation, {times['device']}, "
        f"{times['dtype']}, {times['threads']} thread(s). Loss at equal time: on the part of the validation split that "
        f"is read during a run, before the learning rate falls, {next(iter(summary.values()))['equal_time_s']:.0f} s "
        f"of computation in.",
        "",
        "| variant | parameters | loss | bits | difference | each seed | accuracy | tokens/s | loss at equal time | memory |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for name, row in summary.items():
        each = ", ".join(f"{value:+.4f}" for value in row["difference_by_seed"])
        difference = "" if row["difference"] is None else f"{row['difference']:+.4f}"
        lines.append(
            f"| {name} | {row['parameters']:,} | {row['loss']:.4f} | {row['loss'] / _LN2:.4f} | {difference} | {each} | "
            f"{100 * row['accuracy']:.2f} % | {row['tokens_per_s']:,.0f} | {row['loss_at_equal_time']:.4f} | "
            f"{format_bytes(round(row['peak_memory_bytes']))} |"
        )
    return "\n".join(lines) + "\n"


def _picture(path: Path, summary: dict[str, Any], times: dict[str, Any]) -> None:
    """Validation loss over tokens, and over time of computation."""
    figure = new_figure(10, 4.4)
    left, right = figure.subplots(1, 2, sharey=True)
    lows, highs = [], []
    for number, (name, row) in enumerate(summary.items()):
        curves = list(row["curves"].values())
        # Evaluations fall on the same steps for all seeds, on slightly different numbers of tokens.
        n = min(len(curve) for curve in curves)
        tokens = np.mean([[x for x, _ in curve[:n]] for curve in curves], axis=0)
        losses = np.array([[y for _, y in curve[:n]] for curve in curves])
        seconds = tokens * times["seconds_per_token"][name]
        style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}
        for axes, x in ((left, tokens / 1e6), (right, seconds)):
            axes.fill_between(x, losses.min(0), losses.max(0), alpha=0.15, color=style["color"], linewidth=0)
            axes.plot(x, losses.mean(0), label=name, linewidth=1.3, **style)
        lows.append(losses.min())
        # The first fall says nothing and would flatten the rest.
        highs.append(float(losses.mean(0)[min(len(tokens) - 1, max(1, n // 5))]))
    low, high = min(lows), max(highs)
    margin = max(0.03 * (high - low), 0.005)
    left.set_ylim(low - margin, high + margin)
    left.set_xlabel("million tokens")
    left.set_ylabel("validation loss (nats)")
    right.set_xlabel("seconds of computation (forward and backward, timed apart)")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")
