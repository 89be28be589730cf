"""One call on a graphics processor: is it right, how fast does it train and infer, how much of its arithmetic is used?

First every preset is compared with the CPU in float32, alone and among batch-mates; a difference beyond rounding ends the
call. Then each preset is timed, plain and compiled, on packed batches of proteome-like lengths. Without a graphics
processor the same runs on the CPU in a small form.

    python -m benchmarks.bench_device [--short] [--minutes 9] [--presets small large]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.common import parser, prepare, report, table
from protlat.alphabet import PROTEIN
from protlat.bench.ceilings import measure_ceilings, wait
from protlat.bench.counting import CountProducts
from protlat.models import Encoder, MaskedLM, load_preset
from protlat.ops.segments import Segments

# Largest difference of unit-variance vectors from those of the CPU in float32: sums in another order, six to thirty
# layers deep; and of bfloat16, whose values have 8 bits.
FLOAT32_BOUND, BFLOAT16_BOUND = 2e-3, 0.3


@dataclass(frozen=True)
class Sizes:
    """What is run, by kind of device."""

    presets: tuple[str, ...]
    tokens: int
    repeats: int


SIZES = {"cuda": Sizes(("small", "base", "large"), 65_536, 20), "cpu": Sizes(("tiny",), 2_048, 3)}


class Clock:
    """Says when the call's time is up."""

    def __init__(self, minutes: float) -> None:
        self.end_s = time.monotonic() + 60 * minutes

    def is_up(self) -> bool:
        return time.monotonic() > self.end_s


def lengths_of(n_tokens: int, seed: int) -> tuple[int, ...]:
    """Lengths spread as in a proteome (log-normal, median 300) that add up to `n_tokens`."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while (left := n_tokens - sum(lengths)) > 0:
        lengths.append(min(left, int(np.clip(rng.lognormal(np.log(300), 0.6), 30, 4000))))
    return tuple(lengths)


def tokens_of(n_tokens: int, seed: int) -> torch.Tensor:
    return torch.randint(4, 24, (n_tokens,), generator=torch.Generator().manual_seed(seed))


def differences(preset: str, device: torch.device) -> dict[str, float]:
    """Largest differences of the last layer's vectors from those of the CPU in float32."""
    torch.manual_seed(0)
    encoder = Encoder(load_preset(preset), PROTEIN).eval()
    lengths = lengths_of(1500, seed=1)
    tokens = tokens_of(1500, seed=1)
    with torch.inference_mode():
        truth = encoder(tokens, Segments(lengths))[encoder.config.n_layers]
        there = encoder.to(device)
        there_tokens = tokens.to(device)

        def run(rows: slice, of: tuple[int, ...]) -> torch.Tensor:
            return there(there_tokens[rows], Segments(of, device))[encoder.config.n_layers].float().cpu()

        found = {"float32": run(slice(None), lengths), "float32, alone": run(slice(lengths[0]), lengths[:1])}
        there.to(torch.bfloat16)
        found["bfloat16"] = run(slice(None), lengths)
        alone = run(slice(lengths[0]), lengths[:1])
    differ = {name: float((value - truth[: len(value)]).abs().max()) for name, value in found.items()}
    differ["bfloat16, batch-mates"] = float((alone - found["bfloat16"][: lengths[0]]).abs().max())
    return differ


def require_right(preset: str, device: torch.device) -> str:
    """One line of differences.

    Raises
    ------
    SystemExit
        One of them is beyond rounding.
    """
    found = differences(preset, device)
    for name, value in found.items():
        bound = FLOAT32_BOUND if name.startswith("float32") else BFLOAT16_BOUND
        if not value <= bound:
            sys.exit(f"{preset}, {name}: differs from the CPU by {value:.2g}, more than {bound:g}; nothing was timed")
    return f"{preset}: " + ", ".join(f"{name} {value:.1e}" for name, value in found.items())


Step = Callable[[torch.Tensor, tuple[int, ...]], None]


def training_step(model: MaskedLM, device: torch.device, compiled: bool) -> Step:
    """Forward, backward and fused AdamW under bfloat16 autocast; masked positions are a seventh."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward: nn.Module | Callable[..., torch.Tensor] = torch.compile(model) if compiled else model

    def step(tokens: torch.Tensor, lengths: tuple[int, ...]) -> None:
        at = torch.arange(0, len(tokens), 7, device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = forward(tokens, segments_of(lengths, device), at=at)
            loss = F.cross_entropy(logits.float(), tokens[at])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def inference_step(model: MaskedLM, device: torch.device, compiled: bool) -> Step:
    """The encoder alone, weights in bfloat16."""
    model.eval().to(torch.bfloat16)
    forward = torch.compile(model.encoder) if compiled else model.encoder

    def step(tokens: torch.Tensor, lengths: tuple[int, ...]) -> None:
        with torch.inference_mode():
            forward(tokens, segments_of(lengths, device))

    return step


_SEGMENTS: dict[tuple[tuple[int, ...], str], Segments] = {}


def segments_of(lengths: tuple[int, ...], device: torch.device) -> Segments:
    """The same object for the same layout, since compiled graphs hold its tables."""
    return _SEGMENTS.setdefault((lengths, str(device)), Segments(lengths, device))


@dataclass(frozen=True)
class Timed:
    """One row: tokens per second, operations per token, peak memory, seconds until the first timed step."""

    tokens_per_s: float
    flops_per_token: float
    peak_bytes: int
    start_s: float


def timed(preset: str, mode: str, compiled: bool, sizes: Sizes, device: torch.device) -> Timed:
    """Median over steps on one layout."""
    torch.manual_seed(0)
    model = MaskedLM(load_preset(preset), PROTEIN).to(device)
    make = training_step if mode == "training" else inference_step
    lengths = lengths_of(sizes.tokens, seed=0)
    tokens = tokens_of(sizes.tokens, seed=0).to(device)
    plain = make(model, device, False)
    plain(tokens, lengths)
    with CountProducts() as count:
        plain(tokens, lengths)
    step = make(model, device, True) if compiled else plain
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start_s = time.perf_counter()
    for _ in range(3):
        step(tokens, lengths)
    wait(device)
    start_s = time.perf_counter() - start_s
    seconds = []
    for _ in range(sizes.repeats):
        began_s = time.perf_counter()
        step(tokens, lengths)
        wait(device)
        seconds.append(time.perf_counter() - began_s)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return Timed(len(tokens) / statistics.median(seconds), count.work.flops / len(tokens), peak, start_s)


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--minutes", type=float, default=9.0, help="Begin nothing new after this time.")
    options_parser.add_argument("--presets", nargs="+", help="Which to run.")
    options_parser.add_argument("--tokens", type=int, help="Tokens of a batch.")
    options = options_parser.parse_args()
    prepare(options)
    clock = Clock(options.minutes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    chosen = SIZES[device.type]
    sizes = Sizes(
        tuple(options.presets or chosen.presets),
        options.tokens or chosen.tokens,
        3 if options.short else chosen.repeats,
    )
    checks = [require_right(preset, device) for preset in sizes.presets]
    ceiling = measure_ceilings(torch.bfloat16, device)
    rows, left = [], []
    for preset in sizes.presets:
        for mode in ("inference", "training"):
            for compiled in (False, True):
                name = f"{preset}, {mode}{', compiled' if compiled else ''}"
                if clock.is_up():
                    left.append(name)
                    continue
                found = timed(preset, mode, compiled, sizes, device)
                used = found.tokens_per_s * found.flops_per_token / ceiling.flops
                rows.append(
                    (
                        name,
                        f"{found.tokens_per_s:,.0f}",
                        f"{used:.0%}",
                        f"{found.peak_bytes / 1e9:.1f}",
                        f"{found.start_s:.0f}",
                    )
                )
                print(" | ".join(rows[-1]), flush=True)
    body = table(("preset", "tokens/s", "of the arithmetic", "peak GB", "first steps, s"), rows)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    body += (
        f"\n\n{where}: {ceiling.flops / 1e12:,.1f} TFLOP/s in a bfloat16 product, {ceiling.bandwidth / 1e9:,.0f} GB/s copied. "
        f"Packed batches of {sizes.tokens:,} tokens, median of {sizes.repeats} steps. Largest differences from the CPU in "
        f"float32: {'; '.join(checks)}."
    )
    if left:
        body += f" Not run, the time was up: {'; '.join(left)}."
    report("Graphics processor", body, options.results)


if __name__ == "__main__":
    main()
