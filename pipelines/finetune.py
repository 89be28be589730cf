"""From a pretrained model and a labelled task to a model folder with a head."""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protlat.alphabet import Alphabet
from protlat.devices import resolve_device, resolve_dtype
from protlat.errors import ConfigError, SequenceError
from protlat.evaluation.probes import Probe, fit_probe, probe_kind, require_learnable
from protlat.files import atomic_path, format_bytes, write_text
from protlat.inference.account import require_given
from protlat.inference.batches import require_readable
from protlat.inference.feature_cache import FeatureCache, Ragged, default_cache
from protlat.inference.label_prediction import LabelPredictor, Readout
from protlat.models import ModelConfig, model_hash, read_model_config, resolve_model_folder
from protlat.models.head_file import HEAD_FILE, HeadFile, read_head, write_head
from protlat.models.hub import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE
from protlat.plotting import can_plot
from protlat.reporting import format_seconds, peak_memory_bytes
from protlat.tasks.data import TRAIN, VALID, TaskData
from protlat.tasks.load import LoadedTask, load_task
from protlat.training.label_data import known_labels, n_known, value_scaling
from protlat.training.metrics import METRICS_FILE, read_metrics
from protlat.training.run_folder import RunFolder, command_line, versions

from .finetune_config import FinetuneConfig
from .finetune_report import (
    BASELINE_WORDS,
    account_rows,
    baseline_outputs,
    calibrated,
    draw_curve,
    metric_names,
    model_card,
    score_outputs,
)
from .finetune_training import Trained, train

__all__ = ["FinetuneConfig", "Result", "finetune", "finetune_loaded", "run"]

log = logging.getLogger(__name__)
# Settings that a resumed run cannot change without becoming another run.
_FIXED = ("task", "mode", "head", "lora", "layer", "seed", "tokens_per_batch", "class_weights")
CURVE_FILE = "curve.png"


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes
    ----------
    folder : Path
    stopped_by : int or None
        Number of the signal that ended it early; a checkpoint was saved then.
    summary : dict
        Closing account, by name; empty for every process but the first.
    """

    folder: Path
    stopped_by: int | None
    summary: dict[str, Any]


def run(config: FinetuneConfig) -> dict[str, Any]:
    """`finetune`, of which the closing account is returned."""
    return finetune(config).summary


def finetune(config: FinetuneConfig) -> Result:
    """Train a head, adapters or the whole model on a task, and write a model folder with the head.

    Raises
    ------
    ConfigError, SequenceError, CheckpointError, OutputError, TrainingError
    """
    require_given({"TASK": config.task, "model (-m)": config.model, "output (-o)": config.output})
    output = Path(config.output)
    model_folder = resolve_model_folder(config.model)
    if output.resolve() in (model_folder.resolve(), *model_folder.resolve().parents):
        raise ConfigError(f"-o {output}: holds the model that is to be fine-tuned; give another folder")
    return finetune_loaded(config, load_task(config.task, config.data, config.task_overrides))


def finetune_loaded(config: FinetuneConfig, loaded: LoadedTask) -> Result:
    """`finetune` on a task that is in memory already, perhaps a part of its data."""
    if loaded.data.type == "pair":
        from .finetune_pairs import run as run_pairs

        return Result(Path(config.output), None, run_pairs(config, loaded))
    return _Run(config.resolved(loaded.data.type), loaded, resolve_model_folder(config.model)).execute()


class _Run:
    """One run over a task of labels."""

    def __init__(self, config: FinetuneConfig, loaded: LoadedTask, model_folder: Path) -> None:
        self.config, self.task, self.data = config, loaded.config, loaded.data
        self.output, self.model_folder = Path(config.output), model_folder
        self.folder = RunFolder(self.output)
        self.model_config, self.alphabet = read_model_config(model_folder)
        _check(config, self.data, self.model_config, self.alphabet)
        self.device = resolve_device(config.engine.device)
        self.dtype = resolve_dtype(config.engine.dtype, self.device)
        self.started_s = time.monotonic()

    def execute(self) -> Result:
        config = self.config
        if config.resume and (self.output / HEAD_FILE).is_file():
            log.info("%s: complete already, nothing to do", self.output)
            return Result(self.output, None, self._summary(read_head(self.output)[1]))
        if config.mode == "probe":
            return self._probe()
        trained = train(self, config, self.data)
        if trained.stopped_by is not None:
            state = f"stopped by {trained.stopped_by.name}; resume with --resume"
            self.folder.set_state(state)
            summary = {"state": state, "steps": trained.state.step, "output": str(self.output)}
            return Result(self.output, int(trained.stopped_by), summary if trained.is_first else {})
        if not trained.is_first:
            return Result(self.output, None, {})
        return self._finish(trained)

    def claim(self) -> bool:
        """Make the output folder, or find the run to go on with; True when there is one."""
        self.folder.prepare(self.config.resume, self.config.overwrite)
        if self.config.resume:
            self.folder.check_settings(self.config.to_plain(), _FIXED)
            self.folder.check_data(
                "data_sha256", self._data_facts()["data_sha256"], f"the data of task {self.data.name}"
            )
            self.folder.check_data("model_hash", self._data_facts()["model_hash"], f"the model {self.config.model}")
        return self.config.resume

    def write_start(self, deepspeed: dict[str, Any], session: dict[str, Any]) -> None:
        """Record settings, data and versions."""
        plain = self.config.model_copy(update={"resume": False, "overwrite": False})
        self.folder.write_start(plain.to_commented_yaml(), deepspeed, self._data_facts(), session)
        self.folder.set_state("running, or killed before it could say so")

    def _data_facts(self) -> dict[str, Any]:
        return {
            "task": self.data.name,
            "data_sha256": data_hash(self.data),
            "model_hash": model_hash(self.model_folder),
        }

    def cache(self) -> FeatureCache:
        """Where frozen vectors are kept."""
        folder = self.config.cache or default_cache()
        return FeatureCache(
            folder, self.model_folder, str(self.dtype).removeprefix("torch."), str(self.device), layer=self.config.layer
        )

    def features(self, per_row: bool) -> dict[str, Ragged | np.ndarray]:
        """Frozen vectors of every split: of residues, or means."""
        cache = self.cache()
        return {
            name: cache.residues(split) if per_row else cache.means(split) for name, split in self.data.splits.items()
        }

    def head_file(self, settings: dict[str, Any]) -> HeadFile:
        """The head's description before calibration and scores."""
        mean, scale = value_scaling(self.data.splits[TRAIN]) if self.data.type.endswith("value") else (0.0, 1.0)
        return HeadFile(
            task=self.data.name, title=self.task.title, type=self.data.type, classes=self.data.classes,
            mode=self.config.mode, head=settings, layer=self.config.layer, value_mean=mean, value_scale=scale,
        )  # fmt: skip

    @property
    def metrics(self) -> tuple[str, ...]:
        return metric_names(self.data.type, self.task.metric, self.task.metrics)

    @property
    def is_balanced(self) -> bool:
        wanted = self.config.class_weights
        return (self.task.class_weights if wanted == "task" else wanted) == "balanced"

    def _probe(self) -> Result:
        config = self.config
        self.claim()
        self.write_start({}, {"device": str(self.device), "dtype": str(self.dtype).removeprefix("torch.")})
        features = self.features(self.data.is_per_residue)
        probe = fit_probe(self.data, features, config.probe.kind, config.seed, config.probe, self.is_balanced)
        head = self.head_file({"kind": probe.kind})
        readout = Readout(head, probe)
        course = {"fitted": probe.facts, "time": format_seconds(time.monotonic() - self.started_s)}
        outputs = {name: readout.of_features(found) for name, found in features.items() if name != TRAIN}
        self._copy_encoder()
        return self._write(head, readout, outputs, course)

    def _finish(self, trained: Trained) -> Result:
        assert self.config.head is not None
        head = self.head_file(self.config.head.to_plain())
        readout = Readout(head, trained.head, self.device)
        scored = {name: split for name, split in self.data.splits.items() if name != TRAIN}
        if trained.encoder is None:
            self._copy_encoder()
            outputs = {name: readout.of_features(trained.features[name]) for name in scored}
        else:
            trained.encoder.save_pretrained(self.output)
            encoder = type(trained.encoder).from_pretrained(self.output, self.device, self.dtype)
            predictor = LabelPredictor(encoder, readout, 65_536 if self.device.type == "cuda" else 8_192)
            outputs = {}
            for name, split in scored.items():
                found = dict(predictor.run(split.ids, split.names))
                outputs[name] = [found[i] for i in range(len(split))]
        result = self._write(head, readout, outputs, trained.course)
        for name in ("checkpoints", "best"):
            shutil.rmtree(self.output / name, ignore_errors=True)
        return result

    def _copy_encoder(self) -> None:
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            with atomic_path(self.output / name) as temporary:
                shutil.copyfile(self.model_folder / name, temporary)

    def _write(
        self, head: HeadFile, readout: Readout, outputs: dict[str, list[np.ndarray]], course: dict[str, Any]
    ) -> Result:
        """Calibrate, score, and write what makes the folder a fine-tuned model; ``head.json`` last."""
        head, calibration = self._calibrated(head, outputs)
        splits, n_bootstrap = self.data.splits, self.config.n_bootstrap
        scores, plain = {}, {}
        for name, found in outputs.items():
            scores[name] = score_outputs(head, splits[name], found, self.metrics, n_bootstrap)
            base = baseline_outputs(head, self.data, splits[name])
            plain[name] = score_outputs(head, splits[name], base, self.metrics, n_bootstrap)
        report: dict[str, Any] = {
            "training": course,
            "calibration": calibration,
            "scores": scores,
            "baseline": {"kind": BASELINE_WORDS[head.type.rpartition("_")[2]], "scores": plain},
            "data": {
                name: {
                    "sequences": len(split),
                    "residues": split.n_residues,
                    "labels": sum(n_known(split, row) for row in range(len(split))),
                }
                for name, split in splits.items()
            },
            "warnings": list(self.data.warnings),
            "model": {"from": str(self.config.model), "hash": model_hash(self.model_folder)},
            "versions": versions(),
        }
        head = head.model_copy(update={"report": report})
        yaml = self.config.to_yaml()
        write_text(self.output / CARD_FILE, model_card(head, command_line(), yaml, report["versions"]))
        rows = read_metrics(self.output / METRICS_FILE)
        if rows and can_plot():
            base_score = plain.get(VALID, {}).get(self.metrics[0], {}).get("value")
            draw_curve(self.output / CURVE_FILE, rows, self.metrics[0], base_score)
        elif rows:
            log.warning("no curve drawn: matplotlib is not installed (pip install 'protlat[plot]')")
        function = readout.function
        weights = function.to_tensors() if isinstance(function, Probe) else function.state_dict()
        write_head(self.output, head, weights)
        self.folder.set_state("finished")
        return Result(self.output, None, self._summary(head))

    def _calibrated(self, head: HeadFile, outputs: dict[str, list[np.ndarray]]) -> tuple[HeadFile, dict[str, Any]]:
        if head.type.endswith("value"):
            return head, {}
        fixed = None if self.task.threshold == "best" else float(self.task.threshold)
        if head.type == "sequence_multilabel" and "threshold" not in self.task.model_fields_set:
            fixed = None
        if VALID not in outputs or not len(outputs[VALID]):
            log.warning("no validation split: probabilities are not calibrated, the threshold is %s", fixed or 0.5)
            return head.model_copy(update={"threshold": fixed or 0.5}), {}
        if fixed is None and head.type != "sequence_multilabel" and len(head.classes) != 2:
            raise ConfigError(f"task {head.task}: threshold: best is for two classes or many labels; leave it at 0.5")
        return calibrated(head, self.data.splits[VALID], outputs[VALID], self.config.calibrate, fixed)

    def _summary(self, head: HeadFile) -> dict[str, Any]:
        report = head.report
        rows: dict[str, Any] = {"task": f"{head.task} ({head.type})", "mode": f"{head.mode}, {head.head['kind']}"}
        for name, split in report["data"].items():
            rows[name] = f"{split['sequences']:,} sequences, {split['labels']:,} labels"
        rows |= account_rows(head)
        course = report["training"]
        if "steps" in course:
            rows["steps"] = f"{course['steps']:,} (best after {course['best step']:,})"
        if head.classes:
            rows["temperature"] = f"{head.temperature:.3f}"
        if head.type == "sequence_multilabel":
            rows["threshold"] = f"{head.threshold:.2f}"
        rows["time"] = course["time"]
        rows["peak memory"] = format_bytes(peak_memory_bytes())
        rows["warnings"] = "; ".join(report["warnings"]) or "none"
        rows["written"] = f"{self.output} ({format_bytes((self.output / WEIGHTS_FILE).stat().st_size)} encoder)"
        return rows


def data_hash(data: TaskData) -> str:
    """SHA-256 over the sequences, names and labels of every split."""
    digest = hashlib.sha256(repr((data.type, data.classes)).encode())
    for name, split in data.splits.items():
        digest.update(f"{name}\0{split.fingerprint()}\0{chr(0).join(split.names)}".encode("utf-8", "surrogateescape"))
        arrays = [split.labels] if isinstance(split.labels, np.ndarray) else split.labels
        for labels in arrays:
            digest.update(np.ascontiguousarray(labels).tobytes())
    return digest.hexdigest()


def _check(config: FinetuneConfig, data: TaskData, model_config: ModelConfig, alphabet: Alphabet) -> None:
    """Refuse what cannot work before anything is computed or deleted."""
    if alphabet.name != "protein":
        raise ConfigError(
            f"{config.model}: reads {alphabet.name}, not residues; labels of proteins need a protein model"
        )
    if TRAIN not in data.splits or not len(data.splits[TRAIN]):
        raise SequenceError(f"task {data.name}: the training set is empty")
    require_learnable(data, known_labels(data.splits[TRAIN]))
    for split in data.splits.values():
        if len(split):
            longest = max(range(len(split)), key=lambda i: len(split.ids[i]))
            require_readable(model_config, len(split.ids[longest]), split.names[longest])
    n_layers = model_config.n_layers
    if not -n_layers - 1 <= config.layer <= n_layers:
        raise ConfigError(
            f"layer {config.layer}: this model has layers 0 (embedding) to {n_layers}, or -{n_layers + 1} to -1"
        )
    if config.mode == "probe":
        probe_kind(config.probe.kind, data.type, len(data.classes))
    elif config.head is not None and config.head.kind == "attention" and data.is_per_residue:
        raise ConfigError(
            "head attention makes one vector of a sequence; for labels of residues use cnn, mlp or linear"
        )
    elif config.mode in ("lora", "full") and config.layer in (0, -n_layers - 1):
        raise ConfigError(f"layer 0 is the token embedding: mode {config.mode} has nothing to train; use mode head")


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["finetune", *sys.argv[1:]])
