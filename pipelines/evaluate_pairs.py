"""Rows of `protlat evaluate` for tasks of pairs: contact maps."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from protlat.evaluation.bootstrap import Score
from protlat.evaluation.contacts import contact_metric, contact_scores, separation_map, split_precisions
from protlat.inference.contacts import ContactPredictor
from protlat.inference.feature_cache import Ragged
from protlat.models.contact import load_contact_head
from protlat.tasks.data import TRAIN, VALID, LabelledSplit
from protlat.tasks.pairs import CONTACT_ANGSTROM, separation_prior

from .evaluate_rows import LabelContext
from .finetune import finetune_loaded
from .finetune_config import FinetuneConfig, FinetuneLimitsConfig
from .finetune_pairs_training import targets_of, vectors_of

# Row -> which model folder its vectors come from, and what is changed in the settings of the head.
_TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "onehot_pairs": ("model", {"reads": "one_hot"}),
    "random_pairs": ("random", {}),
    "head": ("model", {}),
    "pairs_convolution": ("model", {"head": {"mixer": "convolution"}}),
}
PAIR_ROWS = ("separation", *_TRAINED)


def score_pair_row(context: LabelContext, name: str) -> tuple[dict[str, dict[str, Score]], dict[str, Any]]:
    """Precisions of one row on every test split, and what is to be told about it."""
    if name == "separation":
        prior = separation_prior(targets_of(context.data.splits[TRAIN]), (CONTACT_ANGSTROM,))
        maps = {
            split: (
                separation_map(prior[:, 0] - prior[:, 1], target) for target in targets_of(context.data.splits[split])
            )
            for split in context.data.tests
        }
        return _scores(context, maps), {}
    folder, changes = _TRAINED[name]
    finetune = _finetune_config(context, folder, name, changes)
    splits = {key: split for key, split in context.data.splits.items() if key in (TRAIN, VALID)}
    part = dataclasses.replace(context.loaded, data=dataclasses.replace(context.data, splits=splits))
    shutil.rmtree(finetune.output, ignore_errors=True)
    one_hot = changes.get("reads") == "one_hot"
    cache = None if one_hot else context.features_of(getattr(context, folder), context.config.layer, per_row=True)
    with context.watch.step("training"):
        finetune_loaded(finetune, part)
    device = "cpu" if cache is None else cache.device
    _, file, head, _ = load_contact_head(finetune.output, device)
    predictor = ContactPredictor(head)
    predicted = {}
    for split_name in context.data.tests:
        split = context.data.splits[split_name]
        predicted[split_name] = _maps(predictor, split, None if cache is None else cache.residues(split))
    with context.watch.step("predicting"):
        scores = _scores(context, predicted)
    shutil.rmtree(finetune.output, ignore_errors=True)
    course = file.report["training"]
    return scores, {key: course[key] for key in ("steps", "best step", "epochs", "ended") if key in course}


def _maps(predictor: ContactPredictor, split: LabelledSplit, vectors: Ragged | None) -> Iterator[np.ndarray]:
    targets = targets_of(split)
    return (predictor.logits(vectors_of(split, vectors, i), targets[i].index) for i in range(len(split)))


def _scores(context: LabelContext, maps: Mapping[str, Iterator[np.ndarray]]) -> dict[str, dict[str, Score]]:
    task, config = context.loaded.config, context.config
    metrics = [contact_metric(name) for name in dict.fromkeys((task.metric, *task.metrics))]
    return {
        split: contact_scores(
            split_precisions(found, targets_of(context.data.splits[split]), metrics), config.n_bootstrap, config.seed
        )
        for split, found in maps.items()
    }


def _finetune_config(context: LabelContext, folder: str, name: str, changes: dict[str, Any]) -> FinetuneConfig:
    config = context.config
    pair = {**config.pair, **changes}
    if "head" in changes:
        pair["head"] = {**config.pair.get("head", {}), **changes["head"]}
    return FinetuneConfig.parse(
        {
            "task": context.data.name, "model": str(getattr(context, folder)),
            "output": str(context.work / f"{context.data.name}-{name}"), "mode": "head", "pair": pair,
            "layer": config.layer, "cache": str(context.cache), "seed": config.seed, "n_bootstrap": 0,
            "limits": FinetuneLimitsConfig(max_steps=config.pair_steps, evaluate_every=max(config.pair_steps // 6, 1)).to_plain(),
            "engine": {"device": config.device, "dtype": config.dtype}, "checkpoints": {"every_minutes": None, "keep": 1},
        },
        "evaluate",
    )  # fmt: skip
