"""Rows of an evaluation: one predictor on one task, kept as a JSON file that a rerun goes on from."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protlat.evaluation.bootstrap import Score, difference, interval
from protlat.evaluation.contacts import CONTACT_METRICS
from protlat.evaluation.scores import METRICS, metric
from protlat.files import write_json

log = logging.getLogger(__name__)
FORMAT = 1
ROWS_FOLDER, TASK_FILE, HELDOUT_FILE = "rows", "task.json", "heldout.json"
# Name -> (title, what it tells).
_BASELINES = {
    "majority": ("majority or mean", "knows the training labels only"),
    "composition": ("composition", "share of each residue and length (of residues: the residue and the shares of 15 around it), linear"),
    "kmer": ("k-mers", "words of 1 to 3 residues (of residues: each of the 15 around it), linear"),
    "onehot_cnn": ("one-hot CNN", "the head of fine-tuning on one-hot residues"),
    "random_probe": ("random weights, probe", "the same architecture without training, linear"),
    "scratch": ("from scratch", "the same architecture, all weights trained on this task only, as long as scratch_residues allows"),
    "blosum62": ("BLOSUM62", "substitution matrix, no training"),
    "hydrophobicity": ("hydrophobicity", "change in Kyte-Doolittle hydropathy, no training"),
    "separation": ("separation", "distance along the chain only"),
    "onehot_pairs": ("one-hot, pair head", "the same pair head on one-hot residues"),
    "random_pairs": ("random weights, pair head", "the same pair head on the architecture without training"),
}  # fmt: skip
_MODELS = {
    "probe": ("probe", "this model, frozen, linear"),
    "head": ("head", "this model, frozen, with a trained head"),
    "lora": ("LoRA", "this model with trained adapters and head"),
    "full": ("full", "this model, all weights trained"),
    "zero_shot": ("zero-shot", "this model's likelihoods, no training on labels"),
    "pairs_convolution": ("pair head, convolution", "this model, frozen, convolution in place of linear attention"),
}
ROWS = {**_BASELINES, **_MODELS}
BASELINE_ROWS, MODEL_ROWS = tuple(_BASELINES), tuple(_MODELS)
UNTRAINED = ("blosum62", "hydrophobicity", "zero_shot")
"""Rows that no label was shown to."""
COMPOSITION_ROWS = ("composition", "blosum62", "separation")
"""What the report marks a model for beating: residue composition, or what stands for it where a task has no such row."""


@dataclass(frozen=True)
class RowResult:
    """Scores of one predictor on one task.

    Attributes
    ----------
    task, row : str
    key : str
        Hash of all that the scores depend on.
    scores : dict of str to dict of str to Score
        By test split and metric, the task's own metric first.
    seconds : dict of str to float
        Time by step.
    facts : dict
        What was fitted or trained, and how far.
    cpu_s : float
        Processor time of all threads.
    """

    task: str
    row: str
    key: str
    scores: dict[str, dict[str, Score]]
    seconds: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    cpu_s: float = 0.0

    def first(self, split: str) -> Score | None:
        """Score of a split by the task's own metric."""
        return next(iter(self.scores[split].values()), None) if split in self.scores else None

    def write(self, folder: Path) -> Path:
        """Write ``FOLDER/TASK/ROW.json`` atomically."""
        path = folder / self.task / f"{self.row}.json"
        scores = {
            split: {
                name: {**score.to_plain(), "replicates": [_rounded(value) for value in score.replicates]}
                for name, score in by_metric.items()
            }
            for split, by_metric in self.scores.items()
        }
        plain = {"format": FORMAT, "task": self.task, "row": self.row, "key": self.key, "scores": scores}
        write_json(path, {**plain, "seconds": self.seconds, "cpu_s": self.cpu_s, "facts": self.facts})
        return path

    @staticmethod
    def read(path: Path) -> RowResult | None:
        """A row from its file; None where there is none that can be read: it is then computed again."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["format"] != FORMAT:
                return None
            scores = {
                split: {name: Score.from_plain(plain) for name, plain in by_metric.items()}
                for split, by_metric in values["scores"].items()
            }
            return RowResult(
                values["task"],
                values["row"],
                values["key"],
                scores,
                values["seconds"],
                values["facts"],
                float(values["cpu_s"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(
                "%s: not a row of an evaluation (%s: %s); it is computed again", path, type(error).__name__, error
            )
            return None


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 7)


def row_key(**facts: Any) -> str:
    """Hash of plain values that a row depends on, 32 hexadecimal digits."""
    text = json.dumps({"format": FORMAT, **facts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def metric_title(name: str) -> str:
    """A metric's name for people."""
    if name in CONTACT_METRICS:
        return CONTACT_METRICS[name].title
    return METRICS[name].title if name in METRICS else metric(name).title


def is_higher_better(name: str) -> bool:
    """Whether larger scores are better ones."""
    return True if name in CONTACT_METRICS else metric(name).higher_is_better


def best_of(rows: Iterable[RowResult], split: str, name: str) -> RowResult | None:
    """The row with the best defined score."""
    sign = 1 if is_higher_better(name) else -1
    scored = [(sign * score.value, row) for row in rows if (score := row.scores.get(split, {}).get(name)) is not None]
    known = [(value, row) for value, row in scored if not math.isnan(value)]
    return max(known, key=lambda pair: pair[0])[1] if known else None


@dataclass(frozen=True)
class Comparison:
    """A model's row beside another one.

    Attributes
    ----------
    ours, theirs : RowResult
    gain : Score
        How much better ours is, in the metric's unit; positive is better whatever the metric's direction.
    """

    ours: RowResult
    theirs: RowResult
    gain: Score

    @property
    def is_clear(self) -> bool:
        """Whether the 95 % interval of the gain lies above zero."""
        return self.gain.low > 0


def compare(ours: RowResult | None, theirs: RowResult | None, split: str, name: str) -> Comparison | None:
    """Paired difference of two rows; None where either has no score there."""
    if ours is None or theirs is None:
        return None
    a, b = (row.scores.get(split, {}).get(name) for row in (ours, theirs))
    if a is None or b is None or math.isnan(a.value) or math.isnan(b.value):
        return None
    if a.n_examples != b.n_examples or len(a.replicates) != len(b.replicates):
        return None
    gain = difference(a, b)
    if not is_higher_better(name):
        low, high = interval(-gain.replicates)
        gain = Score(-gain.value, low, high, gain.n_examples, gain.n_labels, -gain.replicates)
    return Comparison(ours, theirs, gain)


def split_rows(rows: Sequence[RowResult]) -> tuple[list[RowResult], list[RowResult]]:
    """Baselines, and ways to use the model."""
    return [row for row in rows if row.row in BASELINE_ROWS], [row for row in rows if row.row in MODEL_ROWS]
