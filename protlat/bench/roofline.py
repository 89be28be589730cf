"""How near a model comes to the limit of the machine, in inference and in training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from protlat.alphabet import PROTEIN
from protlat.bench.ceilings import Ceilings, wait
from protlat.bench.counting import CountProducts, Work
from protlat.models import ModelConfig, language_model_class
from protlat.models.language_model import LanguageModel
from protlat.ops.segments import Segments

Mode = Literal["inference", "training"]
# Share of the positions whose token a masked model predicts.
_MASKED = 0.15


@dataclass(frozen=True)
class Roofline:
    """One model on one machine.

    Attributes
    ----------
    mode : "inference" or "training"
    n_tokens : int
        Of one batch.
    work : Work
        Products of one batch, as they were run.
    measured : float
        Tokens per second, the median over the runs.
    product_floor, floor : float
        Tokens per second if only the operations took time, and with the bytes of each product as well.
    """

    mode: Mode
    n_tokens: int
    work: Work
    measured: float
    product_floor: float
    floor: float

    @property
    def of_products(self) -> float:
        """Measured speed by the floor of the operations alone: the model's share of the machine's arithmetic."""
        return self.measured / self.product_floor

    @property
    def of_floor(self) -> float:
        return self.measured / self.floor


def roofline(
    config: ModelConfig,
    mode: Mode,
    lengths: tuple[int, ...],
    ceilings: Ceilings,
    device: torch.device,
    repeats: int = 7,
) -> Roofline:
    """Count the work of one batch, then time it.

    Parameters
    ----------
    config : ModelConfig
        Weights are random.
    mode : "inference" or "training"
        Training is forward, backward and a fused AdamW step, weights in float32, products in the ceilings' precision.
    lengths : tuple of int
        Lengths of the packed sequences.
    ceilings : Ceilings
    device : torch.device
    repeats : int
        Runs that count, after three that do not.
    """
    torch.manual_seed(0)
    model = language_model_class(config)(config, PROTEIN).to(device)
    n_tokens = sum(lengths)
    residues = torch.tensor(sorted(PROTEIN.replacement_ids), device=device)
    tokens = residues[torch.randint(len(residues), (n_tokens,), device=device)]
    make = _inference if mode == "inference" else _training
    work = make(model, tokens, lengths, ceilings.dtype)
    # Tables that a first call makes are no part of the work.
    work()
    with CountProducts() as count:
        work()
    seconds = []
    for number in range(repeats + 3):
        wait(device)
        start_s = time.perf_counter()
        work()
        wait(device)
        if number >= 3:
            seconds.append(time.perf_counter() - start_s)
    products_s = count.work.flops / ceilings.flops
    return Roofline(
        mode,
        n_tokens,
        count.work,
        n_tokens / statistics.median(seconds),
        n_tokens / products_s,
        n_tokens / count.work.least_s(ceilings),
    )


def _inference(
    model: LanguageModel, tokens: torch.Tensor, lengths: tuple[int, ...], dtype: torch.dtype
) -> Callable[[], None]:
    model.eval().to(dtype)

    def work() -> None:
        with torch.inference_mode():
            model.encoder(tokens, Segments(lengths, tokens.device))

    return work


def _training(
    model: LanguageModel, tokens: torch.Tensor, lengths: tuple[int, ...], dtype: torch.dtype
) -> Callable[[], None]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    at = torch.arange(0, len(tokens), round(1 / _MASKED), device=tokens.device)

    def work() -> None:
        with torch.autocast(tokens.device.type, dtype=dtype, enabled=dtype != torch.float32):
            logits = model(tokens, Segments(lengths, tokens.device), at=at)
        F.cross_entropy(logits.float(), tokens[at]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return work
