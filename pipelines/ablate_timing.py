"""Speed of the variants of an ablation: forward and backward passes in alternation, in one process."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F

from protlat.alphabet import Alphabet
from protlat.data.batching import BatchPlan
from protlat.data.packing import pack_ids, with_specials
from protlat.data.shards import ShardReader
from protlat.devices import resolve_device, resolve_dtype
from protlat.models import language_model_class
from protlat.ops.segments import Segments

from .ablate_config import AblateConfig
from .pretrain_config import PretrainConfig

_WARMUP = 2


def measure(runs: dict[str, PretrainConfig], config: AblateConfig, alphabet: Alphabet) -> dict[str, Any]:
    """Seconds per token of a forward and backward pass on one real batch.

    The runs themselves are timed too, but one after another, on a machine that may do other work meanwhile. Here every
    round runs every variant once, so that a slow moment hits all of them.

    Returns
    -------
    dict
        ``seconds_per_token`` by variant, ``n_tokens`` of the batch, ``device`` and ``threads``.
    """
    first = next(iter(runs.values()))
    device = resolve_device(first.engine.device)
    dtype = resolve_dtype(first.engine.dtype, device)
    reader = ShardReader(config.shards, "train")
    budget = config.timing.tokens_per_batch or first.batching.tokens_per_batch
    tokens, lengths = _batch(reader, alphabet, budget, first.crop_length)
    models = {}
    for name, run in runs.items():
        torch.manual_seed(0)
        models[name] = language_model_class(run.model)(run.model, alphabet).to(device, dtype).train()
    at = torch.arange(0, len(tokens), 1 if first.model.causal else 7, device=device)
    tokens = tokens.to(device)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(_WARMUP + config.timing.rounds):
        for name, model in models.items():
            start_s = time.perf_counter()
            # Tables are made anew, as they are for each batch of training.
            logits = model(tokens, Segments(lengths, device), at)
            F.cross_entropy(logits, tokens[at]).backward()
            model.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number >= _WARMUP:
                seconds[name].append(time.perf_counter() - start_s)
    return {
        "seconds_per_token": {name: statistics.median(values) / len(tokens) for name, values in seconds.items()},
        "n_tokens": len(tokens),
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }


def _batch(reader: ShardReader, alphabet: Alphabet, budget: int, crop: int) -> tuple[torch.Tensor, tuple[int, ...]]:
    lengths = (reader.lengths + 2).clip(max=crop)
    chosen = next(iter(BatchPlan(lengths, budget, seed=0).once()))
    ids = [with_specials(reader.tokens(int(i))[: int(reader.lengths[i])], alphabet)[: int(lengths[i])] for i in chosen]
    batch = pack_ids(ids)
    return batch.tokens, batch.segments.lengths
