"""Does reading ahead keep up? Tokens per second of the loader alone, of training steps, and the share of a step spent waiting.

The loader (shuffled access to memory-mapped shards, crops, masks, packing) is measured without a model, in one thread;
then a model is trained for some steps with the loader in its prefetch thread, as `protlat pretrain` runs it, and the time
that steps waited for a batch is taken from its metrics.

    python -m benchmarks.bench_loader [--short] [--model tiny] [SHARDS]      without shards, those of the bundled proteins
"""

from __future__ import annotations

import statistics
import tempfile
import time
from importlib import resources
from itertools import islice, pairwise
from pathlib import Path

from benchmarks.common import parser, prepare, report, table
from protlat.data.batching import BatchPlan, Position
from protlat.data.dataset import MaskedDataset
from protlat.data.masking import Masker
from protlat.data.shards import ShardReader
from protlat.data_prep.config import PrepConfig, SplitConfig
from protlat.data_prep.flow import run as prepare_shards
from protlat.pipelines.pretrain import PretrainConfig, load_config, run
from protlat.training.metrics import read_metrics

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


def bundled_shards(folder: Path) -> str:
    """Shards of the proteins of `protlat demo`."""
    fasta = resources.files("protlat").joinpath("demo_data", "proteins.fasta")
    split = SplitConfig(valid_fraction=0.1)
    prepare_shards(PrepConfig(inputs=(str(fasta),), output=str(folder / "shards"), split=split))
    return str(folder / "shards")


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("shards", nargs="?")
    options_parser.add_argument("--model", default="tiny")
    options = options_parser.parse_args()
    prepare(options)
    n_steps, n_batches = (15, 50) if options.short else (60, 200)
    with tempfile.TemporaryDirectory() as folder:
        shards = options.shards or bundled_shards(Path(folder))
        overrides = ("evaluation.floors=false", "evaluation.max_tokens=1", "checkpoints.every_minutes=null")
        config = load_config(None, overrides, options.model, shards=shards, limits__max_steps=n_steps + WARM_UP_STEPS)
        alone = loader_tokens_per_s(config, n_batches)
        stepping, waiting = step_figures(config)
    rows = [
        ("loader alone, one thread", f"{alone:,.0f}", f"{alone / stepping:.0f}"),
        ("training step, median", f"{stepping:,.0f}", "1"),
    ]
    note = (
        f"\n\nSteps waited for a batch in {100 * waiting:.2f} % of their time; preset {options.model}, "
        f"{config.batching.tokens_per_batch:,} tokens a batch, {n_steps} steps."
    )
    report("Loading beside training", table(("what", "tokens/s", "ratio to a step"), rows) + note, options.results)


if __name__ == "__main__":
    main()
