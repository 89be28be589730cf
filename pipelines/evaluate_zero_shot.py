"""Rows of `protlat evaluate` that need no training: likelihoods of variants, a substitution matrix, hydropathy."""

from __future__ import annotations

from typing import Any

import numpy as np

from protlat.alphabet import PROTEIN
from protlat.errors import SequenceError
from protlat.evaluation.bootstrap import Score
from protlat.evaluation.scores import score
from protlat.evaluation.substitutions import BASELINES, substitution_scores
from protlat.inference.variant_scores import VariantScorer, apply_variant
from protlat.inference.variants import Variant, variant_between
from protlat.models import MaskedLM
from protlat.reporting import progress
from protlat.tasks.data import LabelledSplit

from .evaluate_rows import LabelContext

ZERO_SHOT_ROWS = (*BASELINES, "zero_shot")
# What scores without a unit can be measured by.
_RANKS = ("spearman", "pearson")


def variants_of(split: LabelledSplit, wild_type: str, offset: int, task: str) -> list[Variant]:
    """The mutations of each sequence of a split.

    Raises
    ------
    SequenceError
        A sequence is of another length than the wild type.
    """
    try:
        return [
            variant_between(wild_type, PROTEIN.decode(ids), name, name, offset)
            for ids, name in zip(split.ids, split.names, strict=True)
        ]
    except SequenceError as error:
        raise SequenceError(f"task {task}: {error}") from None


def score_zero_shot(context: LabelContext, name: str) -> tuple[dict[str, dict[str, Score]], dict[str, Any]]:
    """Rank correlations of one row with the measured values of every test split."""
    task, config, data = context.loaded.config, context.config, context.data
    scorer = _scorer(context) if name == "zero_shot" else None
    scores = {}
    for split_name in data.tests:
        split = data.splits[split_name]
        variants = variants_of(split, task.wild_type, task.offset, task.name)
        if scorer is None:
            found = substitution_scores(variants, name)
        else:
            with context.watch.step("likelihoods"):
                found = _likelihoods(scorer, context, variants)
        with context.watch.step("scoring"):
            metrics = [m for m in (task.metric, *task.metrics) if m in _RANKS] or ["spearman"]
            labels = np.asarray(split.labels)
            scores[split_name] = {
                metric: score(metric, labels, found, n_bootstrap=config.n_bootstrap, seed=config.seed)
                for metric in metrics
            }
    return scores, {"scoring": config.scoring} if name == "zero_shot" else {}


def _scorer(context: LabelContext) -> VariantScorer:
    from protlat.inference.feature_cache import FeatureCache

    config = context.config
    place = FeatureCache(context.cache, context.model, config.dtype, config.device, config.toks_per_batch)
    model = MaskedLM.from_pretrained(context.model, place.device, place.dtype)
    return VariantScorer(model, place.toks_per_batch)


def _likelihoods(scorer: VariantScorer, context: LabelContext, variants: list[Variant]) -> np.ndarray:
    task, scoring = context.loaded.config, context.config.scoring
    if scoring != "pseudo-perplexity":
        return scorer.marginals(task.wild_type, task.offset, variants, scoring, task.name)
    sequences = [task.wild_type, *(apply_variant(task.wild_type, v, task.offset) for v in variants)]
    names = ["wild type", *(variant.name for variant in variants)]
    with progress("likelihoods", float(sum(map(len, sequences))), "residues") as line:
        values = np.array(list(scorer.pseudo_log_likelihoods(sequences, names, lambda n: line.advance(n))))
    return values[1:] - values[0]
