"""What a finished run leaves for people: a model card and a loss curve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from protlat.files import atomic_path, format_bytes
from protlat.plotting import new_figure
from protlat.reporting import format_count, format_seconds

FLOOR_WORDS = {"frequencies": "residue frequencies", "bigram": "bigram", "trigram": "trigram"}
"""How floors are called in print."""
_UNITS = {"bits_per_byte": "bits per byte", "bits_per_masked_byte": "bits per masked byte"}


def bits(scores: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Bits per byte among scores, by their name in print; empty where the tokens are no bytes."""
    found = {words: scores.get(f"{prefix}{key}") for key, words in _UNITS.items()}
    return {words: value for words, value in found.items() if value is not None}


def floor_names(row: dict[str, Any]) -> list[str]:
    """Floors that an evaluation's row holds, weakest first."""
    return [name for name in FLOOR_WORDS if f"floor_{name}" in row]


def describe_scores(row: dict[str, Any]) -> str:
    """An evaluation's row in a line."""
    if row["perplexity"] is None:
        return "has nothing to predict"
    text = f"perplexity {row['perplexity']:.3f}, accuracy {row['accuracy']:.3f}"
    text += "".join(f", {value:.4f} {name}" for name, value in bits(row).items())
    floors = floor_names(row)
    if not floors:
        return text
    values = [bits(row, f"floor_{name}_") or {"": row[f"floor_{name}"]} for name in floors]
    shown = (f"{name} {next(iter(value.values())):.3f}" for name, value in zip(floors, values, strict=True))
    return f"{text}; floors: {', '.join(shown)}"


def model_card(facts: dict[str, Any], scores: dict[str, Any] | None, floors: dict[str, Any] | None) -> str:
    """Model card in Markdown.

    Parameters
    ----------
    facts : dict
        ``name``, ``n_parameters``, ``weights_bytes``, ``shards``, ``manifest_sha256``, ``n_sequences``, ``n_residues``,
        ``tags`` (name -> sequences), ``step``, ``n_tokens``, ``epochs``, ``elapsed_s``, ``world_size``, ``dtype``,
        ``config_yaml``, ``versions``, ``command`` and ``causal``.
    scores : dict or None
        Final evaluation (see `Validator.score`).
    floors : dict or None
        Floors at the same positions.
    """
    lines = [
        "---",
        "library_name: protlat",
        f"tags: [protein, {'causal' if facts['causal'] else 'masked'}-language-model, linear-attention]",
        "---",
        "",
        f"# {facts['name']}",
        "",
        f"A protlat encoder with {format_count(facts['n_parameters'])} parameters ({format_bytes(facts['weights_bytes'])}), "
        f"trained to predict {'the next token' if facts['causal'] else 'masked residues'}.",
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
    ends = scores.get("n_ends")
    if ends is None:
        what = f"{scores['n']:,} masked positions"
    else:
        what = (
            f"{scores['n']:,} next tokens, {ends:,} of them ends of sequences (mean loss {scores['end_loss']:.3f} nats)"
        )
    lines = [
        "## Scores",
        "",
        f"Validation split, {what}. Perplexity is exp of the mean cross-entropy. The floors are scored at the same "
        "positions and fitted by counting on the training split"
        + (", from the tokens before." if ends is not None else ", the trigram from both neighbours."),
        "",
    ]
    units = bits(scores)
    if units:
        lines += ["Bits per byte are over bytes alone, ends of documents left out.", ""]
    if scores["n"] == 0:
        return [*lines, "There was nothing to predict.", ""]
    lines += [
        f"| | perplexity | accuracy |{''.join(f' {name} |' for name in units)}",
        f"|---|{'---:|' * (2 + len(units))}",
    ]
    rows = [("this model", scores), *((FLOOR_WORDS[name], score) for name, score in (floors or {}).items())]
    for name, row in rows:
        cells = [
            f"{row['perplexity']:.3f}",
            f"{100 * row['accuracy']:.2f} %",
            *(f"{x:.4f}" for x in bits(row).values()),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
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
        styles = {"frequencies": ":", "bigram": "-.", "trigram": "--"}
        for name in floor_names(last):
            height = math.log(last[f"floor_{name}"])
            axes.axhline(height, color="#555555", linestyle=styles[name], linewidth=1, label=FLOOR_WORDS[name])
    axes.set_xlabel("tokens read (millions)")
    causal = bool(evaluations) and "n_ends" in evaluations[-1]
    axes.set_ylabel(f"cross-entropy {'of the next token' if causal else 'at masked positions'} (nats)")
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
