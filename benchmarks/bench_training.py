"""How fast is a training step (forward, backward, optimiser) beside LAT and ESM-2 of the same size?

Everybody trains the same way: float32 weights, autocast to the machine's fast precision, fused AdamW, logits at the
same 15 % of positions through a linear read-out.

    python -m benchmarks.bench_training [--short]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.common import alternate, parser, per_second, prepare, ratio, report, table
from benchmarks.peers import Forward, build

CASES = [(8, 512, ("protlat", "lat", "esm2")), (1, 4096, ("protlat", "lat", "esm2"))]


def step_of(model: nn.Module, forward: Forward, tokens: torch.Tensor, dtype: torch.dtype) -> Callable[[], None]:
    """One whole step on fixed tokens."""
    model.train()
    readout = nn.Linear(320, 33)
    at = torch.rand(tokens.numel(), generator=torch.Generator().manual_seed(0)) < 0.15
    optimizer = torch.optim.AdamW([*model.parameters(), *readout.parameters()], lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            logits = readout(forward(tokens).flatten(0, 1)[at])
        F.cross_entropy(logits.float(), tokens.flatten()[at]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    options = parser(__doc__).parse_args()
    dtype = prepare(options)
    repeats = options.repeats or (5 if options.short else 11)
    rows = []
    for n_sequences, length, names in CASES:
        tokens = torch.randint(4, 24, (n_sequences, length))
        candidates = {}
        for name in names:
            model, forward = build(name, length)
            candidates[name] = step_of(model, forward(model), tokens, dtype)
        seconds = alternate(candidates, repeats, warmup=3)
        rates = [per_second(tokens.numel(), seconds[name]) for name in names]
        ratios = [f"{ratio(seconds['protlat'], seconds[name]):.2f}" for name in names[1:]]
        rows.append((f"{n_sequences} x {length:,}", *rates, *ratios))
    body = table(("sequences x length", "protlat, tokens/s", "LAT", "ESM-2", "times LAT", "times ESM-2"), rows)
    note = f"\n\n{str(dtype).removeprefix('torch.')} autocast, medians of {repeats} alternating runs."
    report("Training step", body + note, options.results)


if __name__ == "__main__":
    main()
