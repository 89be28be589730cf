"""What a run folder holds, for ``protlat info``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protlat.config import read_yaml
from protlat.errors import CheckpointError, ConfigError
from protlat.reporting import format_seconds
from protlat.training.checkpoint import CheckpointStore
from protlat.training.metrics import METRICS_FILE, read_metrics
from protlat.training.report import bits, floor_names

RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"


def is_run_folder(folder: str | Path) -> bool:
    """Whether `folder` was made by ``protlat pretrain``."""
    return (Path(folder) / RUN_FILE).is_file() and (Path(folder) / CONFIG_FILE).is_file()


def describe_run(folder: str | Path) -> dict[str, Any]:
    """Facts of a run as plain nested values.

    Raises
    ------
    CheckpointError
        The folder is not a run, or its files cannot be read.
    """
    folder = Path(folder)
    if not is_run_folder(folder):
        raise CheckpointError(f"{folder}: not a run folder: it has no {RUN_FILE} and {CONFIG_FILE}")
    try:
        config = read_yaml(folder / CONFIG_FILE)
        run = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        rows = read_metrics(folder / METRICS_FILE)
    except (ConfigError, OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: cannot be read as a run: {error}") from None
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    finished = (folder / "model" / "config.json").is_file()
    facts: dict[str, Any] = {"kind": "run", "folder": str(folder), "state": run.get("state", "unknown")}
    facts["model"] = "model/" if finished else "not written yet: the run has not ended"
    if train:
        last = train[-1]
        recent = [row["loss"] for row in train[-100:]]
        facts["training"] = {
            "steps": last["step"],
            "tokens": last["tokens"],
            "epochs completed": last["epoch"],
            "time": format_seconds(last["wall_s"]),
            "loss, last 100 steps": round(sum(recent) / len(recent), 4),
            "learning rate": last["lr"],
            "tokens per second": round(sum(r["tokens_per_s"] for r in train[-100:]) / len(train[-100:])),
        }
    if evaluations:
        facts["validation"] = _validation(evaluations[-1])
    facts["checkpoints"] = [path.name for path in CheckpointStore(folder / "checkpoints", keep=1).all()]
    facts["data"] = run.get("data", {})
    facts["versions"] = run.get("versions", {})
    facts["sessions"] = [f"{s['time']}: {s['command']}" for s in run.get("sessions", [])]
    facts["config"] = config
    return facts


_FLOORS = {"frequencies": "residue frequencies", "bigram": "a bigram model", "trigram": "a trigram model"}


def _validation(row: dict[str, Any]) -> dict[str, Any]:
    if "perplexity" not in row:  # a fine-tuning that has not ended
        return {"at step": row["step"], "loss": row["loss"], row["metric"]: row["score"]}
    facts: dict[str, Any] = {
        "at step": row["step"],
        ("tokens predicted" if "n_ends" in row else "masked positions"): row["n"],
        "part": "whole split" if row["whole"] else "the part scored during training",
        "perplexity": row["perplexity"],
        "accuracy": row["accuracy"],
    }
    facts |= bits(row)
    for name in floor_names(row):
        facts[f"perplexity of {_FLOORS[name]}"] = row[f"floor_{name}"]
    if row.get("tags"):
        facts["perplexity by tag"] = {tag or "(none)": score["perplexity"] for tag, score in row["tags"].items()}
    return facts
