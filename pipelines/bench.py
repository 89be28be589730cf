"""`protlat bench`: measurements of this computer."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from protlat.bench.ceilings import Ceilings, measure_ceilings
from protlat.bench.roofline import Mode, Roofline, roofline
from protlat.config import Config
from protlat.devices import resolve_device, resolve_dtype, set_threads
from protlat.errors import ConfigError
from protlat.files import write_json
from protlat.models import load_preset

log = logging.getLogger(__name__)


class RooflineConfig(Config):
    """Settings of `protlat bench roofline`."""

    presets: tuple[str, ...] = ("tiny", "small")
    """Presets or YAML files of models; weights are random."""
    modes: tuple[Mode, ...] = ("inference", "training")
    """What is timed."""
    n_sequences: int = Field(default=16, ge=1)
    """Sequences of one packed batch."""
    length: int = Field(default=512, ge=1)
    """Tokens of each sequence."""
    repeats: int = Field(default=7, ge=1)
    """Runs that count."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; auto: bfloat16 where the processor multiplies it natively."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; null: all."""
    output: str | None = None
    """JSON file for the figures."""


def run_roofline(config: RooflineConfig) -> dict[str, Any]:
    """Measure the ceilings, then every preset in every mode.

    Returns
    -------
    dict
        ``ceilings`` and ``rows``, plain values with the unit in their names.

    Raises
    ------
    ConfigError
        An unknown preset, or none.
    """
    if not config.presets:
        raise ConfigError("presets: name at least one")
    models = {name: load_preset(name) for name in config.presets}
    set_threads(config.threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    kinds = (torch.bfloat16, torch.float32)
    measured = {kind: measure_ceilings(kind, device) for kind in kinds}
    rows = []
    for name, model in models.items():
        for mode in config.modes:
            log.info("%s, %s ...", name, mode)
            found = roofline(
                model, mode, (config.length,) * config.n_sequences, measured[dtype], device, config.repeats
            )
            rows.append(_row(name, found))
    result = {
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "dtype": _name(dtype),
        "batch": f"{config.n_sequences} x {config.length}",
        "ceilings": {_name(kind): _ceiling(measured[kind]) for kind in kinds},
        "rows": rows,
    }
    if config.output is not None:
        write_json(Path(config.output), result)
    return result


def roofline_text(result: dict[str, Any]) -> str:
    """The result as aligned text."""
    lines = [f"{result['device']}, {result['threads']} threads; batches of {result['batch']} tokens, {result['dtype']}"]
    for name, ceiling in result["ceilings"].items():
        gflops, gb_per_s = ceiling["gflop_per_s"], ceiling["copy_gb_per_s"]
        lines.append(f"  {name}: {gflops:,.0f} GFLOP/s in matrix products; memory copy {gb_per_s:,.1f} GB/s")
    header = ("preset", "mode", "MFLOP/token", "kB/token", "tokens/s", "products alone", "share", "with bytes", "share")
    table = [header]
    table += [
        (
            row["preset"], row["mode"], f"{row['mflop_per_token']:.1f}", f"{row['kb_per_token']:.0f}",
            f"{row['tokens_per_s']:,.0f}", f"{row['product_floor_tokens_per_s']:,.0f}", f"{row['of_products']:.0%}",
            f"{row['floor_tokens_per_s']:,.0f}", f"{row['of_floor']:.0%}",
        )
        for row in result["rows"]
    ]  # fmt: skip
    widths = [max(len(line[i]) for line in table) for i in range(len(header))]
    for line in table:
        cells = [line[0].ljust(widths[0]), line[1].ljust(widths[1])]
        cells += [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def _row(name: str, found: Roofline) -> dict[str, Any]:
    return {
        "preset": name,
        "mode": found.mode,
        "mflop_per_token": found.work.flops / found.n_tokens / 1e6,
        "kb_per_token": found.work.n_bytes / found.n_tokens / 1e3,
        "tokens_per_s": found.measured,
        "product_floor_tokens_per_s": found.product_floor,
        "of_products": found.of_products,
        "floor_tokens_per_s": found.floor,
        "of_floor": found.of_floor,
    }


def _ceiling(ceilings: Ceilings) -> dict[str, float]:
    return {"gflop_per_s": ceilings.flops / 1e9, "copy_gb_per_s": ceilings.bandwidth / 1e9}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "CPU"
    return next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), "CPU")


if __name__ == "__main__":
    from protlat.cli.main import main

    main(["bench", *sys.argv[1:]])
