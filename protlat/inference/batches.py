"""Running a model over items in batches that shrink when memory runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from protlat.data.packing import batches_by_tokens
from protlat.errors import ProtlatError, SequenceError

if TYPE_CHECKING:
    from protlat.models import ModelConfig

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


def max_tokens(config: ModelConfig) -> int | None:
    """Longest sequence, <cls> and <eos> included, that a model can read; None: any."""
    return config.max_length


def require_readable(config: ModelConfig, longest: int, name: str) -> None:
    """Check the longest sequence before anything is computed.

    Raises
    ------
    SequenceError
        It does not fit the model's table of positions or linformer heads.
    """
    limit = max_tokens(config)
    if limit is not None and longest + 2 > limit:
        part = f"{config.positions.kind} positions" if hasattr(config.positions, "max_length") else "linformer heads"
        raise SequenceError(
            f"sequence {name!r} has {longest:,} residues, but this model has {part} for at most {limit - 2:,}; "
            f"embed takes --long window, cut or skip"
        )


class OutOfMemoryOnOne(ProtlatError, MemoryError):
    """One sequence alone does not fit into the device's memory."""


class BatchRunner(Generic[Item, Result]):
    """Calls a model on batches of at most a number of tokens; a larger item is a batch of its own.

    When the device runs out of memory the batch is halved until it fits, and later batches stay that small. An item that
    does not fit alone is named in the error.

    Parameters
    ----------
    compute : callable
        One result per item of a batch.
    n_tokens : callable
        Size of an item.
    toks_per_batch : int
        Largest batch.
    device : torch.device
        Where `compute` works.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Item]], Sequence[Result]],
        n_tokens: Callable[[Item], int],
        toks_per_batch: int,
        device: torch.device,
    ) -> None:
        self._compute, self._n_tokens, self._device = compute, n_tokens, device
        self.limit = toks_per_batch

    def run(self, items: Sequence[Item], names: Sequence[str]) -> Iterator[tuple[int, Result]]:
        """(index, result) of every item, in order.

        Raises
        ------
        OutOfMemoryOnOne
            An item does not fit even alone; the message gives its name.
        """
        pending = [list(batch) for batch in batches_by_tokens([self._n_tokens(item) for item in items], self.limit)][
            ::-1
        ]
        while pending:
            batch = pending.pop()
            results = self._attempt([items[i] for i in batch])
            if results is not None:
                yield from zip(batch, results, strict=True)
                continue
            sizes = [self._n_tokens(items[i]) for i in batch]
            if len(batch) == 1:
                raise OutOfMemoryOnOne(
                    f"sequence {names[batch[0]]!r} of {sizes[0]:,} tokens does not fit into the memory of {self._device} even "
                    "alone; use --device cpu, --dtype bfloat16, or for embed --long window"
                )
            self.limit = min(self.limit, max(sum(sizes) // 2, 1))
            log.warning(
                "out of memory on %s at %d tokens: batches are halved to %d", self._device, sum(sizes), self.limit
            )
            rest = [i for waiting in reversed(pending) for i in waiting]
            order = [*batch, *rest]
            groups = batches_by_tokens([self._n_tokens(items[i]) for i in order], self.limit)
            pending = [[order[k] for k in group] for group in groups][::-1]

    def _attempt(self, items: Sequence[Item]) -> Sequence[Result] | None:
        try:
            with torch.inference_mode():
                return self._compute(items)
        except torch.OutOfMemoryError:
            # Handled outside this block: until it is left, the traceback keeps the batch's tensors alive.
            pass
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return None
