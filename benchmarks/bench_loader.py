"""Does reading ahead keep up? Tokens per second of the loader alone, of training steps, and the share of a step spent waiting.

The loader (shuffled access to memory-mapped shards, crops, masks, packing) is measured without a model, in one thread;
then a model is trained for some steps with the loader in its prefetch thread, as `protlat pretrain` runs it, and the time
that steps waited for a batch is taken from its metrics. Results are printed and appended to ``benchmarks/RESULTS.md``.

Run: ``python -m benchmarks.bench_loader SHARDS [--steps 60] [--model tiny]``
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from datetime import date
from itertools import islice, pairwise
from pathlib import Path

from protlat.pipelines.pretrain import PretrainConfig, load_config, run

from protlat.data.batching import BatchPlan, Position
from protlat.data.dataset import MaskedDataset
from protlat.data.masking import Masker
from protlat.data.shards import ShardReader
from protlat.training.metrics import read_metrics

RESULTS = Path(__file__).parent / "RESULTS.md"
WARM_UP_STEPS = 5
"""Left out of the step figures: memory is taken and kernels are chosen in them."""


def loader_tokens_per_s(config: PretrainConfig, n_batches: int) -> float:
    """Tokens that one thread makes ready per second, without a model."""
    reader = ShardReader(config.shards, "train")
    masker = Masker(config.masking, reader.alphabet)
    dataset = MaskedDataset(reader, reader.alphabet, masker, config.batching.crop_length, config.seed)
    plan = BatchPlan(dataset.lengths, config.batching.tokens_per_batch, config.seed)
    batches = plan.walk(Position())
    dataset.batch(next(batches)[1], 0)
    start_s = time.perf_counter()
    n_tokens = sum(dataset.batch(indices, epoch).n_tokens for epoch, indices in islice(batches, n_batches))
    return n_tokens / (time.perf_counter() - start_s)


def step_figures(config: PretrainConfig) -> tuple[float, float]:
    """Tokens per second of training steps, and the share of their time spent waiting for a batch."""
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder) / "run")
        rows = read_metrics(Path(folder) / "run" / "metrics.jsonl")
    steps = [row for row in rows if row["kind"] == "train"]
    tokens = [steps[0]["tokens"], *(b["tokens"] - a["tokens"] for a, b in pairwise(steps))]
    kept = [(n, row) for n, row in zip(tokens, steps, strict=True)][WARM_UP_STEPS:]
    seconds = sum(n / row["tokens_per_s"] for n, row in kept)
    waited = sum(row["wait_s"] for _, row in kept)
    return statistics.median(row["tokens_per_s"] for _, row in kept), waited / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batches", type=int, default=200, help="batches that the loader alone makes")
    arguments = parser.parse_args()
    overrides = ("evaluation.floors=false", "evaluation.max_tokens=1", "checkpoints.every_minutes=null")
    config = load_config(
        None, overrides, arguments.model, shards=arguments.shards, limits__max_steps=arguments.steps + WARM_UP_STEPS
    )
    alone = loader_tokens_per_s(config, arguments.batches)
    stepping, waiting = step_figures(config)
    lines = [
        f"## Loading beside training ({date.today()})",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; preset {arguments.model}, "
        f"{config.batching.tokens_per_batch:,} tokens a batch, {arguments.steps} steps; load average {os.getloadavg()[0]:.1f}.",
        "",
        "| what | tokens/s | ratio to a step |",
        "|---|---:|---:|",
        f"| loader alone, one thread | {alone:,.0f} | {alone / stepping:.1f} |",
        f"| training step, median | {stepping:,.0f} | 1.0 |",
        "",
        f"Steps waited for a batch in {100 * waiting:.2f} % of their time.",
    ]
    print("\n".join(lines))
    with open(RESULTS, "a", encoding="utf-8") as handle:
        handle.write("\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
