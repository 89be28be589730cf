"""What a finished run leaves for people: a model card and a loss curve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from protlat.files import atomic_path, format_bytes
from protlat.plotting import new_figure
from protlat.reporting import format_count, format_seconds


def model_card(facts: dict[str, Any], scores: dict[str, Any] | None, floors: dict[str, Any] | None) -> str:
    """Model card in Markdown.

    Parameters
    ----------
    facts : dict
        ``name``, ``n_parameters``, ``weights_bytes``, ``shards``, ``manifest_sha256``, ``n_sequences``, ``n_residues``,
        ``tags`` (name -> sequences), ``step``, ``n_tokens``, ``epochs``, ``elapsed_s``, ``world_size``, ``dtype``,
        ``config_yaml``, ``versions`` and ``command``.
    scores : dict or None
        Final evaluation (see `Validator.score`).
    floors : dict or None
        Floors at the same positions.
    """
    lines = [
        "---",
        "library_name: protlat",
        "tags: [protein, masked-language-model, linear-attention]",
        "---",
        "",
        f"# {facts['name']}",
        "",
        f"A protlat encoder with {format_count(facts['n_parameters'])} parameters ({format_bytes(facts['weights_bytes'])}), "
        f"trained to predict masked residues.",
        "",
        "## Training",
        "",
        "| | |",
        "|---|---|",
        f"| data | `{facts['shards']}`, manifest sha256 `{facts['manifest_sha256']}` |",
        f"| training split | {facts['n_sequences']:,} sequences, {facts['n_residues']:,} residues |",
        f"| read | {facts['n_tokens']:,} tokens in {facts['step']:,} steps, {facts['epochs']:.2f} epochs |",
        f"| time | {format_seconds(facts['elapsed_s'])}, {facts['world_size']} process(es), {facts['dtype']} |",
        f"| command | `{facts['command']}` |",
        "",
    ]
    if set(facts["tags"]) - {""}:
        lines += ["| source tag | training sequences |", "|---|---:|"]
        lines += [f"| {tag or '(none)'} | {n:,} |" for tag, n in sorted(facts["tags"].items())]
        lines.append("")
    lines += _scores(scores, floors)
    lines += ["## Settings", "", "```yaml", facts["config_yaml"].rstrip(), "```", "", "## Versions", ""]
    lines += [f"- {name} {version}" for name, version in facts["versions"].items()]
    return "\n".join(lines) + "\n"


def _scores(scores: dict[str, Any] | None, floors: dict[str, Any] | None) -> list[str]:
    if scores is None:
        return ["## Scores", "", "There was no validation split.", ""]
    lines = [
        "## Scores",
        "",
        f"Validation split, {scores['n']:,} masked positions. Perplexity is exp of the mean cross-entropy. The floors are "
        "scored at the same positions: residue frequencies, and a trigram model of both neighbours, fitted on the "
        "training split.",
        "",
    ]
    if scores["n"] == 0:
        return [*lines, "No position was masked.", ""]
    header = "| | perplexity | accuracy |"
    rows = [("this model", scores)]
    if floors is not None:
        rows += [("residue frequencies", floors["frequencies"]), ("trigram", floors["trigram"])]
    lines += [header, "|---|---:|---:|"]
    lines += [f"| {name} | {row['perplexity']:.3f} | {100 * row['accuracy']:.2f} % |" for name, row in rows]
    lines.append("")
    by_tag = scores.get("tags")
    if by_tag:
        lines += [
            "| source tag | positions | perplexity | accuracy | trigram perplexity |",
            "|---|---:|---:|---:|---:|",
        ]
        for tag, row in by_tag.items():
            floor = f"{floors['trigram']['tags'][tag]['perplexity']:.2f}" if floors is not None else ""
            lines.append(
                f"| {tag or '(none)'} | {row['n']:,} | {row['perplexity']:.2f} | {100 * row['accuracy']:.2f} % | {floor} |"
            )
        lines.append("")
    return lines


def loss_curve(path: str | Path, rows: list[dict[str, Any]]) -> None:
    """Draw training and validation loss over tokens, with the floors as lines, to a PNG file."""
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval" and row["loss"] is not None]
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    tokens = [row["tokens"] / 1e6 for row in train]
    losses = [row["loss"] for row in train]
    axes.plot(tokens, losses, color="#b8c4d6", linewidth=0.6, label="training, each step")
    axes.plot(tokens, _smooth(losses), color="#2b5c9e", linewidth=1.4, label="training, smoothed")
    if evaluations:
        x = [row["tokens"] / 1e6 for row in evaluations]
        axes.plot(x, [row["loss"] for row in evaluations], "o-", color="#c4501b", markersize=3, label="validation")
        last = evaluations[-1]
        for key, style, label in (
            ("floor_frequencies", ":", "residue frequencies"),
            ("floor_trigram", "--", "trigram"),
        ):
            if key in last:
                axes.axhline(math.log(last[key]), color="#555555", linestyle=style, linewidth=1, label=label)
    axes.set_xlabel("tokens read (millions)")
    axes.set_ylabel("cross-entropy at masked positions (nats)")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary)


def _smooth(values: list[float]) -> list[float]:
    """Running mean with a window of about a fiftieth of the run."""
    weight = 2 / (max(len(values) // 50, 1) + 1)
    smoothed: list[float] = []
    for value in values:
        smoothed.append(value if not smoothed else smoothed[-1] + weight * (value - smoothed[-1]))
    return smoothed
