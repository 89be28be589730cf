"""Rows of `protlat evaluate` for tasks of labels: each is a predictor that is fitted on train and gives outputs for tests."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protlat.evaluation.baselines import plain_features
from protlat.evaluation.bootstrap import Score
from protlat.evaluation.probes import Features, Probe, fit_probe
from protlat.evaluation.scores import score
from protlat.inference.feature_cache import FeatureCache
from protlat.inference.label_prediction import LabelPredictor, Readout
from protlat.models import MaskedLM, ModelConfig, language_model_class, read_model_config
from protlat.models.head_file import HeadFile, read_head
from protlat.nn.heads import AttentionHeadConfig, CnnHeadConfig, needs_residues
from protlat.tasks.data import TRAIN, VALID, LabelledSplit, TaskData
from protlat.tasks.load import LoadedTask
from protlat.training.label_optim import LabelOptimConfig

from .evaluate_config import EvaluateConfig
from .finetune import finetune_loaded
from .finetune_config import FinetuneConfig, FinetuneLimitsConfig
from .finetune_report import baseline_outputs, calibrated, metric_names, prediction_for

Outputs = dict[str, list[np.ndarray]]
# <cls>, <pad> and so on have channels too; a multiple of the head size.
_ONE_HOT_WIDTH = 40


class Stopwatch:
    """Seconds by step, and processor seconds of all threads in all."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start_cpu_s = time.process_time()

    @property
    def cpu_s(self) -> float:
        """Since the watch was made; on a busy machine this tells more than the clock."""
        return round(time.process_time() - self._start_cpu_s, 2)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a block and add it to a step."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - start_s, 2)


@dataclasses.dataclass
class LabelContext:
    """One task as its rows need it.

    Attributes
    ----------
    config : EvaluateConfig
    loaded : LoadedTask
        With the sampled data.
    model, random, one_hot : Path
        Model folders: the model; its architecture with random weights; one whose embedding is one-hot.
    work : Path
        For folders of training runs, deleted afterwards.
    cache : Path
        Of vectors.
    watch : Stopwatch
        Of the row at hand.
    """

    config: EvaluateConfig
    loaded: LoadedTask
    model: Path
    random: Path
    one_hot: Path
    work: Path
    cache: Path
    watch: Stopwatch

    @property
    def data(self) -> TaskData:
        return self.loaded.data

    @property
    def scored(self) -> dict[str, LabelledSplit]:
        """Validation, for calibration, and tests."""
        return {name: split for name, split in self.data.splits.items() if name != TRAIN}

    @property
    def is_balanced(self) -> bool:
        return self.loaded.config.class_weights == "balanced"

    def features_of(self, folder: Path, layer: int, per_row: bool) -> FeatureCache:
        """The cache of a model's vectors, with those of every split in it."""
        config = self.config
        cache = FeatureCache(self.cache, folder, config.dtype, config.device, config.toks_per_batch, layer)
        with self.watch.step("vectors"):
            for split in self.data.splits.values():
                if per_row:
                    cache.residues(split)
                else:
                    cache.means(split)
        return cache

    def head_file(self, mode: str, kind: dict[str, Any]) -> HeadFile:
        """A description by which outputs are read."""
        data = self.data
        return HeadFile.parse(
            {"task": data.name, "type": data.type, "classes": data.classes, "mode": mode, "head": kind, "layer": self.config.layer}
        )  # fmt: skip


def majority(context: LabelContext) -> tuple[HeadFile, Outputs, dict[str, Any]]:
    """Shares of the classes in train, or the mean of its values."""
    head = context.head_file("probe", {"kind": "majority"})
    return head, {n: baseline_outputs(head, context.data, s) for n, s in context.scored.items()}, {}


def plain(kind: str) -> Callable[[LabelContext], tuple[HeadFile, Outputs, dict[str, Any]]]:
    """A linear model on features without a model behind them."""

    def fit(context: LabelContext) -> tuple[HeadFile, Outputs, dict[str, Any]]:
        per_residue = context.data.is_per_residue
        with context.watch.step("features"):
            features = {n: plain_features(kind, s, per_residue) for n, s in context.data.splits.items()}
        return _probed(context, features)

    return fit


def frozen_probe(folder: str) -> Callable[[LabelContext], tuple[HeadFile, Outputs, dict[str, Any]]]:
    """A linear model on the vectors of a model."""

    def fit(context: LabelContext) -> tuple[HeadFile, Outputs, dict[str, Any]]:
        per_residue = context.data.is_per_residue
        cache = context.features_of(getattr(context, folder), context.config.layer, per_residue)
        with context.watch.step("vectors"):
            splits = context.data.splits.items()
            features: dict[str, Features]
            features = {n: cache.residues(s) if per_residue else cache.means(s) for n, s in splits}
        return _probed(context, features)

    return fit


def _probed(context: LabelContext, features: dict[str, Features]) -> tuple[HeadFile, Outputs, dict[str, Any]]:
    config, data = context.config, context.data
    with context.watch.step("fitting"):
        probe: Probe = fit_probe(data, features, config.probe.kind, config.seed, config.probe, context.is_balanced)
    head = context.head_file("probe", {"kind": probe.kind})
    readout = Readout(head, probe)
    with context.watch.step("predicting"):
        outputs = {name: readout.of_features(features[name]) for name in context.scored}
    return head, outputs, probe.facts


def trained(
    folder: str, mode: str, residues: str
) -> Callable[[LabelContext], tuple[HeadFile, Outputs, dict[str, Any]]]:
    """A network: a head on frozen vectors, adapters, or everything.

    Parameters
    ----------
    folder : str
        Which model of the context.
    mode : str
        Of `protlat finetune`.
    residues : str
        Setting with the number of residues to train on.
    """

    def fit(context: LabelContext) -> tuple[HeadFile, Outputs, dict[str, Any]]:
        place: Path = getattr(context, folder)
        finetune = _finetune_config(context, place, folder, mode, getattr(context.config, residues))
        # Tests are predicted here, once.
        kept = {name: split for name, split in context.data.splits.items() if name in (TRAIN, VALID)}
        part = dataclasses.replace(context.loaded, data=dataclasses.replace(context.data, splits=kept))
        shutil.rmtree(finetune.output, ignore_errors=True)
        if mode == "head":
            resolved = finetune.resolved(context.data.type)
            assert resolved.head is not None
            context.features_of(place, finetune.layer, needs_residues(resolved.head, context.data.is_per_residue))
        with context.watch.step("training"):
            finetune_loaded(finetune, part)
        result, head = read_head(finetune.output, "labels")
        with context.watch.step("predicting"):
            outputs = _outputs_of(context, finetune, result, head)
        shutil.rmtree(finetune.output, ignore_errors=True)
        course = head.report["training"]
        facts = {name: course[name] for name in ("steps", "best step", "epochs", "ended") if name in course}
        return head, outputs, facts

    return fit


def _finetune_config(context: LabelContext, place: Path, folder: str, mode: str, residues: int) -> FinetuneConfig:
    config = context.config
    tokens_per_batch = 8192 if mode == "head" else 4096
    per_epoch = sum(len(ids) + 2 for ids in context.data.splits[TRAIN].ids)
    steps = max(math.ceil(residues / tokens_per_batch), 20)
    every = max(min(math.ceil(per_epoch / tokens_per_batch), steps // 4), 5)
    is_one_hot, is_scratch = folder == "one_hot", folder == "random"
    head = CnnHeadConfig() if is_one_hot or context.data.is_per_residue else AttentionHeadConfig()
    # Weights that know nothing learn as fast in every layer.
    optim = LabelOptimConfig(encoder_lr=1e-3, layer_decay=1.0) if is_scratch else LabelOptimConfig()
    return FinetuneConfig(
        task=context.data.name, model=str(place), output=str(context.work / f"{context.data.name}-{folder}-{mode}"),
        mode=mode, head=head, layer=0 if is_one_hot else config.layer, cache=str(context.cache), seed=config.seed,
        n_bootstrap=0, tokens_per_batch=tokens_per_batch, optim=optim,
        limits=FinetuneLimitsConfig(max_steps=steps, evaluate_every=every, patience=5),
        engine={"device": config.device, "dtype": config.dtype}, checkpoints={"every_minutes": None, "keep": 1},
    )  # fmt: skip


def _outputs_of(context: LabelContext, finetune: FinetuneConfig, result: Path, head: HeadFile) -> Outputs:
    config, data = context.config, context.data
    if finetune.mode == "head":
        cache = FeatureCache(
            context.cache, finetune.model, config.dtype, config.device, config.toks_per_batch, finetune.layer
        )
        readout = Readout.load(result, head, cache.dim, cache.device)
        take = cache.residues if readout.takes_residues else cache.means
        return {name: readout.of_features(take(data.splits[name])) for name in data.tests}
    cache = FeatureCache(context.cache, finetune.model, config.dtype, config.device, config.toks_per_batch)
    predictor = LabelPredictor.load(result, cache.device, cache.dtype, cache.toks_per_batch)
    outputs = {}
    for name in data.tests:
        split = data.splits[name]
        found = dict(predictor.run(split.ids, split.names))
        outputs[name] = [found[index] for index in range(len(split))]
    return outputs


LABEL_ROWS: dict[str, Callable[[LabelContext], tuple[HeadFile, Outputs, dict[str, Any]]]] = {
    "majority": majority,
    "composition": plain("composition"),
    "kmer": plain("kmer"),
    "onehot_cnn": trained("one_hot", "head", "head_residues"),
    "random_probe": frozen_probe("random"),
    "scratch": trained("random", "full", "scratch_residues"),
    "probe": frozen_probe("model"),
    "head": trained("model", "head", "head_residues"),
    "lora": trained("model", "lora", "full_residues"),
    "full": trained("model", "full", "full_residues"),
}


def score_row(context: LabelContext, name: str) -> tuple[dict[str, dict[str, Score]], dict[str, Any]]:
    """Fit a row and score its tests by every metric of the task, and what is to be told about it."""
    task, config = context.loaded.config, context.config
    head, outputs, facts = LABEL_ROWS[name](context)
    if VALID in outputs and not head.type.endswith("value"):
        head = _calibrated(context, head, outputs.pop(VALID))
    outputs.pop(VALID, None)
    scores = {}
    with context.watch.step("scoring"):
        for split, found in outputs.items():
            labels = context.data.splits[split].labels
            scores[split] = {
                metric: score(metric, labels, prediction_for(head, found, metric), n_bootstrap=config.n_bootstrap, seed=config.seed)  # type: ignore[arg-type]  # not of pairs
                for metric in metric_names(head.type, task.metric, task.metrics)
            }  # fmt: skip
    return scores, facts


def _calibrated(context: LabelContext, head: HeadFile, outputs: Sequence[np.ndarray]) -> HeadFile:
    """The head with temperature and threshold from validation, as `protlat finetune` fits them."""
    task = context.loaded.config
    fixed = None if task.threshold == "best" else float(task.threshold)
    if head.type == "sequence_multilabel" and "threshold" not in task.model_fields_set:
        fixed = None
    if not len(outputs) or (fixed is None and head.type != "sequence_multilabel" and len(head.classes) != 2):
        return head
    return calibrated(head, context.data.splits[VALID], outputs, True, fixed)[0]


def make_random(model: Path, folder: Path, seed: int) -> Path:
    """The architecture of a model with random weights, as it is before pretraining."""
    config, alphabet = read_model_config(model)
    torch.manual_seed(seed)
    language_model_class(config)(config, alphabet).save_pretrained(folder)
    return folder


def make_one_hot(model: Path, folder: Path) -> Path:
    """A model folder whose layer 0 is one-hot, so that a head can be trained on it like on any other."""
    _, alphabet = read_model_config(model)
    torch.manual_seed(0)
    width = -(-len(alphabet) // 8) * 8 if len(alphabet) > _ONE_HOT_WIDTH else _ONE_HOT_WIDTH
    one_hot = MaskedLM(ModelConfig(d_model=width, n_layers=1, head_dim=8), alphabet)
    with torch.no_grad():
        one_hot.encoder.embedding.weight.copy_(torch.eye(len(alphabet), width))
    one_hot.save_pretrained(folder)
    return folder
