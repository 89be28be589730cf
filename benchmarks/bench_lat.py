"""Preset `lat` beside linear-attention-transformer itself: same options, parameters, precision; speed and memory.

Two switches of each are compared: both directions, and causal with a blind spot of 64 and a window (the form that the
peer recommends; its exact causal form stands in bench_causal). Speeds alternate in one process; peak memory is that of
a process of its own for each candidate.

    python -m benchmarks.bench_lat [--short]
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.common import alternate, parser, per_second, prepare, ratio, report, table
from protlat.alphabet import PROTEIN
from protlat.models import language_model_class
from protlat.models.reference_names import lat_config
from protlat.ops.segments import Segments
from protlat.reporting import peak_memory_bytes

LENGTHS = (512, 4096, 32_768)
TOKENS_AT_LEAST = 4096
MODES = {
    "both directions": {},
    "causal": {"causal": True, "blindspot_size": 64, "n_local_attn_heads": 4, "local_attn_window_size": 64},
}
SIZE = {
    "num_tokens": len(PROTEIN),
    "dim": 512,
    "depth": 6,
    "heads": 8,
    "use_rotary_emb": True,
    "use_axial_pos_emb": False,
}

Run = Callable[[torch.Tensor], torch.Tensor]
"""(B, L) ids to logits, (B, L, V) or (B * L, V)."""


def settings(mode: str, length: int) -> dict[str, Any]:
    """Keyword arguments by the reference's names, which both understand."""
    return {**SIZE, **MODES[mode], "max_seq_len": length}


def ours(mode: str, length: int) -> tuple[nn.Module, Run]:
    # The number of tokens comes with the alphabet.
    config = lat_config(**{name: value for name, value in settings(mode, length).items() if name != "num_tokens"})
    model = language_model_class(config)(config, PROTEIN)

    def run(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens.flatten(), Segments([tokens.shape[1]] * len(tokens)))

    return model, run


def theirs(mode: str, length: int) -> tuple[nn.Module, Run]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from linear_attention_transformer import LinearAttentionTransformerLM

    model = LinearAttentionTransformerLM(**settings(mode, length))
    mask: dict[tuple[int, ...], torch.Tensor] = {}

    def run(tokens: torch.Tensor) -> torch.Tensor:
        shape = tuple(tokens.shape)
        mask.setdefault(shape, torch.ones(shape, dtype=torch.bool))
        return model(tokens, input_mask=mask[shape])

    return model, run


CANDIDATES = {"protlat": ours, "lat": theirs}


def inference(model: nn.Module, run: Run, tokens: torch.Tensor, dtype: torch.dtype) -> Callable[[], None]:
    model.eval().to(dtype)

    def work() -> None:
        with torch.inference_mode():
            run(tokens)

    return work


def training(model: nn.Module, run: Run, tokens: torch.Tensor, dtype: torch.dtype) -> Callable[[], None]:
    """Forward, backward and optimiser: float32 weights, autocast to the fast precision, loss at every position."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def work() -> None:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            logits = run(tokens).flatten(0, -2)
        F.cross_entropy(logits.float(), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return work


WORK = {"inference": inference, "training": training}


def batch(length: int) -> torch.Tensor:
    return torch.randint(4, 24, (max(1, TOKENS_AT_LEAST // length), length))


def memory_mb(kind: str, mode: str, name: str, length: int, threads: int) -> float:
    """Peak memory of a process that does this work twice, beyond the same process before its first call."""
    argument = json.dumps([kind, mode, name, length, threads])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_lat", "--one", argument], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def one(argument: str) -> None:
    kind, mode, name, length, threads = json.loads(argument)
    torch.set_num_threads(threads)
    from protlat.devices import has_native_bf16

    dtype = torch.bfloat16 if has_native_bf16(torch.device("cpu")) else torch.float32
    model, run = CANDIDATES[name](mode, length)
    before = peak_memory_bytes()
    work = WORK[kind](model, run, batch(length), dtype)
    work()
    work()
    print((peak_memory_bytes() - before) / 1e6)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--one", help="Used by the script itself: one candidate, for its memory.")
    options = made.parse_args()
    if options.one:
        one(options.one)
        return
    dtype = prepare(options)
    repeats = options.repeats or (3 if options.short else 5)
    lengths = LENGTHS[:2] if options.short else LENGTHS
    rows = []
    for mode in MODES:
        for kind, make in WORK.items():
            for length in lengths:
                tokens = batch(length)
                candidates, sizes = {}, {}
                for name, build in CANDIDATES.items():
                    model, run = build(mode, length)
                    sizes[name] = sum(p.numel() for p in model.parameters())
                    candidates[name] = make(model, run, tokens, dtype)
                seconds = alternate(candidates, repeats, warmup=2)
                del candidates
                memory = [memory_mb(kind, mode, name, length, options.threads) for name in CANDIDATES]
                rows.append(
                    (
                        mode, kind, f"{len(tokens)} x {length:,}", *(per_second(tokens.numel(), seconds[n]) for n in CANDIDATES),
                        f"{ratio(seconds['protlat'], seconds['lat']):.2f}", *(f"{m:,.0f}" for m in memory),
                        f"{sizes['protlat'] / sizes['lat']:.3f}",
                    )
                )  # fmt: skip
                print(rows[-1], flush=True)
    head = (
        "form", "work", "sequences x length", "protlat, tokens/s", "LAT", "times LAT", "protlat, MB", "LAT, MB",
        "parameters, ratio",
    )  # fmt: skip
    note = (
        f"\n\n{str(dtype).removeprefix('torch.')}, medians of {repeats} alternating runs; width 512, 6 layers, 8 heads."
    )
    report("Preset lat beside the reference", table(head, rows) + note, options.results)


if __name__ == "__main__":
    main()
