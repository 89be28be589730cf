"""What does one attention layer cost, by kind of head, from 128 to 32,768 tokens, and where does softmax lose?

One layer of 4 heads of 64 channels, projections included, one sequence. Softmax is measured as far as a run stays within
the limit. Besides the usual table, `--docs` writes the table and the picture that docs/attention.md shows.

    python -m benchmarks.bench_attention [--short] [--docs docs/attention]
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import machine, parser, prepare, report, table
from protlat.models import ModelConfig
from protlat.nn.attention.layer import AttentionLayer
from protlat.ops.segments import Segments
from protlat.plotting import new_figure, require_plotting

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
SHORT_LENGTHS = (128, 512, 2048, 8192)
WIDTH, N_HEADS = 256, 4
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "softmax"},
    "window": {"kind": "window", "radius": 64},
    "banded": {"kind": "banded", "radius": 64},
    "efficient": {"kind": "efficient"},
    "linear": {"kind": "linear"},
}
MODES = ("forward", "training")
# A case that is foreseen to take longer is not measured.
LIMIT_S = 30.0
Cost = dict[tuple[str, str, int], tuple[float, float]]


def case(kind: str, length: int, dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    """Forward pass, and forward and backward pass, of one layer on one sequence."""
    config = ModelConfig.parse(
        {"d_model": WIDTH, "head_dim": WIDTH // N_HEADS, "attention": [{**KINDS[kind], "n_heads": N_HEADS}]}
    )
    layer = AttentionLayer(WIDTH, config.head_dim, config.groups_of(0), config.gate, None).to(dtype)
    x = torch.randn(length, WIDTH, dtype=dtype)
    gradient = torch.randn(length, WIDTH, dtype=dtype)
    wanted = [x.clone().requires_grad_(), *layer.parameters()]
    # Tables that the layers of a model share are made once a batch and are not part of a layer's cost.
    segments = {mode: Segments([length]) for mode in MODES}

    def forward() -> None:
        with torch.no_grad():
            layer(x, segments["forward"])

    def training() -> None:
        torch.autograd.grad(layer(wanted[0], segments["training"]), wanted, gradient)

    return {"forward": forward, "training": training}


def seconds(function: Callable[[], None], short: bool) -> float:
    """Median over repeats that fill about a second; one repeat of what takes long."""
    function()
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < (0.2 if short else 1.0) and len(taken) < 200):
        start_s = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start_s)
        if taken[-1] > 5:
            break
    return statistics.median(taken)


def peak_bytes(function: Callable[[], None]) -> int:
    """Most bytes of tensors that lived at once during a call, beside those from before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    events = sorted(
        (event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"),
        key=lambda event: event.start_ns(),
    )
    now = peak = 0
    for event in events:
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def measure(lengths: tuple[int, ...], dtype: torch.dtype, short: bool) -> Cost:
    """Seconds and peak bytes by (kind, mode, length); cases that would take too long are absent."""
    costs: Cost = {}
    for length in lengths:
        for kind in KINDS:
            functions = case(kind, length, dtype)
            for mode in MODES:
                foreseen = [s * (length / n) ** 2 for (k, m, n), (s, _) in costs.items() if (k, m) == (kind, mode)]
                tried = {n for k, m, n in costs if (k, m) == (kind, mode)}
                if len(tried) < lengths.index(length) or (foreseen and kind == "softmax" and foreseen[-1] > LIMIT_S):
                    continue
                costs[kind, mode, length] = seconds(functions[mode], short), peak_bytes(functions[mode])
    return costs


def crossover(costs: Cost, kind: str, mode: str, lengths: tuple[int, ...]) -> str:
    """Length from which a kind is faster than softmax, by straight lines between measured points in log scale."""
    both = [n for n in lengths if (kind, mode, n) in costs and ("softmax", mode, n) in costs]
    gain = [math.log(costs["softmax", mode, n][0] / costs[kind, mode, n][0]) for n in both]
    # The last length at which softmax wins, so that noise among short ones does not count as a crossing.
    last = max((i for i, value in enumerate(gain) if value <= 0), default=-1)
    if last == len(both) - 1:
        return f"beyond {both[-1]:,}"
    if last < 0:
        return f"below {both[0]:,}"
    share = -gain[last] / (gain[last + 1] - gain[last])
    crossing = math.exp(math.log(both[last]) * (1 - share) + math.log(both[last + 1]) * share)
    return f"{round(crossing, -1 if crossing < 1000 else -2):,.0f}"


def tables(costs: Cost, lengths: tuple[int, ...], dtype: torch.dtype) -> str:
    """Time and memory a token of each kind, and the crossings, as Markdown."""
    parts = []
    for mode in MODES:
        for unit, index, scale in (("microseconds", 0, 1e6), ("peak kilobytes", 1, 1e-3)):
            rows = []
            for length in lengths:
                cells = [costs.get((kind, mode, length)) for kind in KINDS]
                rows.append((f"{length:,}", *("-" if c is None else f"{scale * c[index] / length:.2f}" for c in cells)))
            parts.append(f"**{mode.capitalize()}: {unit} a token**\n\n{table(('tokens', *KINDS), rows)}")
    faster = [(kind, *(crossover(costs, kind, mode, lengths) for mode in MODES)) for kind in KINDS if kind != "softmax"]
    crossings = table(("kind", *(f"{mode}, tokens" for mode in MODES)), faster)
    parts.append(f"**Length from which each is faster than softmax**\n\n{crossings}")
    parts.append(
        f"One layer with its projections, width {WIDTH}, {N_HEADS} heads of {WIDTH // N_HEADS}, "
        f"{str(dtype).removeprefix('torch.')}, one sequence; windows and bands of 64 tokens on either side; banded with one "
        "round of 5 taps. Softmax is torch's fused kernel. Memory: tensors alive at once beside input and weights. "
        f"`-`: foreseen to take over {LIMIT_S:.0f} s."
    )
    return "\n\n".join(parts)


def draw(costs: Cost, lengths: tuple[int, ...], path: Path) -> None:
    """Time and memory a token against length, forward and training, in logarithmic scales."""
    figure = new_figure(9, 6.5)
    panels = figure.subplots(2, 2, sharex=True)
    for column, mode in enumerate(MODES):
        for row, (label, scale) in enumerate((("microseconds a token", 1e6), ("kilobytes a token", 1e-3))):
            axes = panels[row][column]
            for kind in KINDS:
                measured = [n for n in lengths if (kind, mode, n) in costs]
                values = [scale * costs[kind, mode, n][row] / n for n in measured]
                axes.plot(measured, values, marker="o", markersize=3, label=kind)
            axes.set_xscale("log", base=2)
            axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=45)
            if row == 0:
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
            axes.set_ylabel(label)
            if row == 0:
                axes.set_title(mode)
            else:
                axes.set_xlabel("tokens in the sequence")
    panels[0][0].legend(fontsize=8)
    figure.savefig(path)


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--docs", type=Path, help="Folder for costs.md and costs.png.")
    options = options_parser.parse_args()
    dtype = prepare(options)
    if options.docs is not None:
        require_plotting("--docs")
    lengths = SHORT_LENGTHS if options.short else LENGTHS
    costs = measure(lengths, dtype, options.short)
    body = tables(costs, lengths, dtype)
    report("Attention: one layer by kind of head", body, options.results)
    if options.docs is not None:
        options.docs.mkdir(parents=True, exist_ok=True)
        draw(costs, lengths, options.docs / "costs.png")
        text = (
            "# Cost of attention by length\n\nWritten by `python -m benchmarks.bench_attention --docs docs/attention`, "
            f"{date.today().isoformat()}, on {machine()}.\n\n![Cost by length](costs.png)\n\n{body}\n"
        )
        (options.docs / "costs.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
