"""`protlat finetune` for tasks of pairs: a contact head on frozen vectors of residues."""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from protlat.errors import ConfigError, ProtlatError, SequenceError
from protlat.evaluation.contacts import contact_metric, contact_scores, separation_map, split_precisions
from protlat.files import atomic_path, format_bytes, write_text
from protlat.inference.batches import require_readable
from protlat.inference.contacts import ContactPredictor
from protlat.inference.feature_cache import Ragged
from protlat.models import model_hash, read_model_config, resolve_model_folder
from protlat.models.contact import head_settings
from protlat.models.contact_head import ContactHead
from protlat.models.head_file import HEAD_FILE, HeadFile, read_head, write_head
from protlat.models.hub import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE
from protlat.plotting import can_plot
from protlat.reporting import peak_memory_bytes
from protlat.tasks.data import TRAIN, VALID, LabelledSplit
from protlat.tasks.load import LoadedTask
from protlat.tasks.pairs import CONTACT_ANGSTROM, pair_labels, separation_prior
from protlat.training.engine import Process, launch_variables
from protlat.training.metrics import METRICS_FILE, read_metrics
from protlat.training.run_folder import RunFolder, command_line, versions

from .finetune_config import FinetuneConfig
from .finetune_pairs_config import PairConfig
from .finetune_pairs_training import PairTraining, TrainedPairs, targets_of, vectors_of
from .finetune_report import draw_curve, model_card, score_text

log = logging.getLogger(__name__)
# Settings that a resumed run cannot change without becoming another run.
_FIXED = ("task", "mode", "pair", "layer", "seed")
_MAIN_METRICS = ("precision_long_l", "precision_long_l5", "precision_medium_long_l5")
_STOPPED = "stopped; resume with --resume"


def run(config: FinetuneConfig, loaded: LoadedTask) -> dict[str, Any]:
    """Train a contact head, score it beside its baselines, and write a model folder.

    Parameters
    ----------
    config : FinetuneConfig
        `config.pair` holds the settings of `PairConfig`.
    loaded : LoadedTask
        Of type pair.

    Returns
    -------
    dict
        The closing account, row by row; empty for every process but the first.

    Raises
    ------
    ConfigError, SequenceError, CheckpointError, OutputError, TrainingError
    """
    return _Run(config, loaded).execute()


class _Run:
    """One run over a task of pairs."""

    def __init__(self, config: FinetuneConfig, loaded: LoadedTask) -> None:
        self.pair = PairConfig.parse(config.pair, "pair")
        # A pair config says the same in full, so that a resumed run can be compared.
        self.config = config.model_copy(update={"pair": self.pair.to_plain()})
        self.task, self.data = loaded.config, loaded.data
        self.output, self.model_folder = Path(config.output), resolve_model_folder(config.model)
        self.folder = RunFolder(self.output)
        self.metrics = tuple(
            contact_metric(name)
            for name in dict.fromkeys([self.task.metric, *self.task.metrics, *_MAIN_METRICS])
            if name
        )
        self._check()
        self.training = PairTraining(self.config, self.data, self.model_folder, self.metrics)

    def execute(self) -> dict[str, Any]:
        if self.config.resume and (self.output / HEAD_FILE).is_file():
            log.info("%s: complete already, nothing to do", self.output)
            return self._summary(read_head(self.output)[1])
        with launch_variables():
            try:
                done = self._train_all()
            except ProtlatError as error:
                if (self.output / "run.json").is_file() and "already holds" not in str(error):
                    self.folder.set_state("stopped by an error")
                raise
        if done is None:
            return {}
        main, others = done
        if any(found.stopped_by is not None for found in (main, *others.values())):
            self.folder.set_state(_STOPPED)
            return {"state": _STOPPED, "output": str(self.output)}
        return self._finish(main, others)

    def _train_all(self) -> tuple[TrainedPairs, dict[str, TrainedPairs]] | None:
        """The head and those that stand beside it, up to the first that is stopped; None but on the first process."""
        main = self.training.train(self.pair, self.output, self._claim)
        others: dict[str, TrainedPairs] = {}
        last = main
        for name in self.pair.baselines:
            if last.stopped_by is None:
                last = others[name] = self.training.train(_baseline(self.pair, name), self._baseline_folder(name))
        return (main, others) if main.is_first else None

    def _baseline_folder(self, name: str) -> Path:
        return self.output / "baselines" / name

    def _claim(self, process: Process, deepspeed: dict[str, Any]) -> None:
        """Make the folder, or check that it holds the run to go on with; every process calls it."""
        error: ProtlatError | None = None
        if process.is_first:
            try:
                self._write_start(process, deepspeed)
            except ProtlatError as problem:  # raised again, here, or as an exit elsewhere
                error = problem
        process.raise_together(error)

    def _write_start(self, process: Process, deepspeed: dict[str, Any]) -> None:
        config, facts = self.config, self._data_facts()
        self.folder.prepare(config.resume, config.overwrite)
        if config.resume:
            self.folder.check_settings(config.to_plain(), _FIXED)
            self.folder.check_data("data_sha256", facts["data_sha256"], f"the data of task {self.data.name}")
            self.folder.check_data("model_hash", facts["model_hash"], f"the model {config.model}")
        dtype = str(process.dtype).removeprefix("torch.")
        session = {"world_size": process.world_size, "device": str(process.device), "dtype": dtype}
        plain = config.model_copy(update={"resume": False, "overwrite": False})
        self.folder.write_start(plain.to_commented_yaml(), deepspeed, facts, session)
        self.folder.set_state("running, or killed before it could say so")

    def _check(self) -> None:
        """Refuse what cannot work before anything is computed or deleted."""
        config, splits = self.config, self.data.splits
        if config.mode != "head":
            raise ConfigError(f"mode {config.mode}: a task of pairs has mode head only, on frozen vectors")
        if not len(splits.get(TRAIN, ())):
            raise SequenceError(f"task {self.data.name}: the training set is empty")
        if not any(pair_labels(target).contacts.any() for target in targets_of(splits[TRAIN])):
            raise SequenceError(
                f"task {self.data.name}: no contact in the training set: no two residues with known coordinates are closer than "
                f"{CONTACT_ANGSTROM:g} angstrom at a separation of 6 or more"
            )
        model_config, alphabet = read_model_config(self.model_folder)
        if alphabet.name != "protein":
            raise ConfigError(f"{config.model}: reads {alphabet.name}, not residues; contacts need a protein model")
        n_layers = model_config.n_layers
        if not -n_layers - 1 <= config.layer <= n_layers:
            raise ConfigError(
                f"layer {config.layer}: this model has layers 0 (embedding) to {n_layers}, or -{n_layers + 1} to -1"
            )
        for split in splits.values():
            longest = max(range(len(split)), key=lambda i: len(split.ids[i]))
            require_readable(model_config, len(split.ids[longest]), split.names[longest])

    def _data_facts(self) -> dict[str, Any]:
        digest = data_hash_of_pairs(self.data.splits)
        return {"task": self.data.name, "data_sha256": digest, "model_hash": model_hash(self.model_folder)}

    def _finish(self, trained: TrainedPairs, others: dict[str, TrainedPairs]) -> dict[str, Any]:
        """Score everything and write what makes the folder a fine-tuned model; ``head.json`` last."""
        scores: dict[str, Any] = {}
        beside: dict[str, dict[str, Any]] = {name: {} for name in ("separation", *others)}
        prior = separation_prior(targets_of(self.data.splits[TRAIN]), (CONTACT_ANGSTROM,))
        scored = {name: split for name, split in self.data.splits.items() if name != TRAIN and len(split)}
        own = self.training.features(self.pair.reads)
        for name, split in scored.items():
            scores[name] = self._scores(trained.head, split, own[name])
            maps = (separation_map(prior[:, 0] - prior[:, 1], target) for target in targets_of(split))
            beside["separation"][name] = self._plain(split_precisions(maps, targets_of(split)))
            for other, found in others.items():
                read = None if _baseline(self.pair, other).reads == "one_hot" else own[name]
                beside[other][name] = self._scores(found.head, split, read)
        report: dict[str, Any] = {
            "training": trained.course,
            "scores": scores,
            "baseline": {"kind": "separation along the chain only", "scores": beside["separation"]},
            "further baselines": {name: {"training": others[name].course, "scores": beside[name]} for name in others},
            "data": {
                name: {
                    "sequences": len(split), "residues": split.n_residues,
                    "labels": sum(int(np.triu(pair_labels(t).known).sum()) for t in targets_of(split)),
                    "contacts": sum(int(np.triu(pair_labels(t).contacts).sum()) for t in targets_of(split)),
                }
                for name, split in self.data.splits.items()
            },
            "warnings": list(self.data.warnings),
            "model": {"from": str(self.config.model), "hash": model_hash(self.model_folder)},
            "versions": versions(),
        }  # fmt: skip
        file = HeadFile(
            task=self.data.name, title=self.task.title, type="pair", mode="head",
            head=head_settings(trained.head, self.pair.reads), layer=self.config.layer, report=report,
        )  # fmt: skip
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            with atomic_path(self.output / name) as temporary:
                shutil.copyfile(self.model_folder / name, temporary)
        card = model_card(file, command_line(), self.config.to_yaml(), report["versions"])
        card = card.replace(
            "protlat predict -m FOLDER in.fasta -o out.tsv", "protlat predict contacts -m FOLDER in.fasta -o out.npz"
        )
        write_text(self.output / CARD_FILE, card)
        rows = read_metrics(self.output / METRICS_FILE)
        if rows and can_plot():
            base = report["baseline"]["scores"].get(VALID, {}).get(self.metrics[0].name, {}).get("value")
            draw_curve(self.output / "curve.png", rows, self.metrics[0].name, base)
        write_head(self.output, file, trained.head.state_dict())
        self.folder.set_state("finished")
        for name in ("checkpoints", "best", "baselines"):
            shutil.rmtree(self.output / name, ignore_errors=True)
        return self._summary(file)

    def _scores(self, head: ContactHead, split: LabelledSplit, features: Ragged | None) -> dict[str, Any]:
        predictor = ContactPredictor(head)
        targets = targets_of(split)
        maps = (predictor.logits(vectors_of(split, features, i), targets[i].index) for i in range(len(split)))
        return self._plain(split_precisions(maps, targets))

    def _plain(self, precisions: dict[str, np.ndarray]) -> dict[str, Any]:
        """Scores for the report, the task's own metric first."""
        names = dict.fromkeys([*(metric.name for metric in self.metrics), *precisions])
        found = contact_scores(precisions, self.config.n_bootstrap)
        return {name: found[name].to_plain() for name in names}

    def _summary(self, file: HeadFile) -> dict[str, Any]:
        report = file.report
        rows: dict[str, Any] = {
            "task": f"{file.task} (pair)",
            "head": f"{file.head['mixer']}, reads {file.head['reads']}",
        }
        for name, split in report["data"].items():
            rows[name] = f"{split['sequences']:,} chains, {split['labels']:,} pairs, {split['contacts']:,} contacts"
        for name, found in report["scores"].items():
            for metric in self.metrics:
                beside = {"separation": report["baseline"]["scores"][name]} | {
                    other: values["scores"][name] for other, values in report["further baselines"].items()
                }
                told = "; ".join(f"{other} {score_text(values[metric.name])}" for other, values in beside.items())
                rows[f"{name} {metric.title}"] = f"{score_text(found[metric.name])}; {told}"
        course = report["training"]
        rows["steps"] = f"{course['steps']:,} (best after {course['best step']:,})"
        rows["time"] = course["time"]
        rows["peak memory"] = format_bytes(peak_memory_bytes())
        rows["warnings"] = "; ".join(report["warnings"]) or "none"
        rows["written"] = str(self.output)
        return rows


def data_hash_of_pairs(splits: dict[str, LabelledSplit]) -> str:
    """SHA-256 over names, sequences and coordinates of every split."""
    digest = hashlib.sha256()
    for name, split in splits.items():
        digest.update(f"{name}\0{split.fingerprint()}\0{chr(0).join(split.names)}".encode("utf-8", "surrogateescape"))
        for target in targets_of(split):
            digest.update(np.ascontiguousarray(target.xyz).tobytes())
            digest.update(np.ascontiguousarray(target.index).tobytes())
    return digest.hexdigest()


def _baseline(pair: PairConfig, name: str) -> PairConfig:
    """Settings of a head that is reported beside."""
    if name == "one_hot":
        return pair.model_copy(update={"reads": "one_hot"})
    return pair.model_copy(update={"head": pair.head.model_copy(update={"mixer": "convolution"})})
