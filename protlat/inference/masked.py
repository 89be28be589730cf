"""What a masked-language model expects at masked positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from protlat.data.packing import pack_ids, with_specials
from protlat.errors import ConfigError, SequenceError
from protlat.inference.batches import BatchRunner

if TYPE_CHECKING:
    from protlat.models import MaskedLM


@dataclass(frozen=True)
class MaskedQuery:
    """One forward pass of one sequence.

    Attributes
    ----------
    ids : numpy.ndarray, shape (L,)
        Tokens without specials, masks in place.
    positions : numpy.ndarray, shape (P,), int64
        0-based residues to predict.
    """

    ids: np.ndarray
    positions: np.ndarray


class MaskedPredictor:
    """Probabilities of the 20 residues at masked positions.

    Parameters
    ----------
    model : MaskedLM
        In evaluation mode, on its device.
    toks_per_batch : int
        Tokens of one forward pass; a longer sequence goes alone.

    Attributes
    ----------
    residues : tuple of str
        What the columns of the probabilities stand for: the alphabet's `replacement_ids` (for proteins the 20 standard
        residues), alphabetically.

    Notes
    -----
    Probabilities are softmax over these residues only, in float32: they sum to 1, and specials, X, B, U, Z, O and gaps
    take no share.
    """

    def __init__(self, model: MaskedLM, toks_per_batch: int) -> None:
        self.model = model
        self.toks_per_batch = toks_per_batch
        alphabet = model.alphabet
        codes = sorted(alphabet.replacement_ids, key=lambda code: alphabet.tokens[code])
        self.residues = tuple(alphabet.tokens[code] for code in codes)
        self.column_of = {code: column for column, code in enumerate(codes)}
        self._device = next(model.parameters()).device
        self._codes = torch.tensor(codes, device=self._device)
        self._runner: BatchRunner[MaskedQuery, np.ndarray]
        self._runner = BatchRunner(self._compute, lambda query: len(query.ids) + 2, toks_per_batch, self._device)

    def run(self, queries: Sequence[MaskedQuery], names: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
        """Log-probabilities of each query, in order.

        Yields
        ------
        index : int
        log_probabilities : numpy.ndarray, shape (P, len(residues)), float32

        Raises
        ------
        SequenceError
            The model gives something that is not a number.
        OutOfMemoryOnOne
            A sequence does not fit into the device's memory.
        """
        for index, values in self._runner.run(queries, names):
            if not np.isfinite(values).all():
                raise SequenceError(
                    f"sequence {names[index]!r}: the prediction is not finite: the model's weights are damaged"
                )
            yield index, values

    def _compute(self, queries: Sequence[MaskedQuery]) -> list[np.ndarray]:
        batch = pack_ids([with_specials(query.ids, self.model.alphabet) for query in queries]).to(self._device)
        starts = np.cumsum([0, *(len(query.ids) + 2 for query in queries)])[:-1]
        at = np.concatenate([start + 1 + query.positions for start, query in zip(starts, queries, strict=True)])
        logits = self.model(batch.tokens, batch.segments, at=torch.from_numpy(at).to(self._device))
        values = torch.log_softmax(logits[:, self._codes].float(), dim=-1).cpu().numpy()
        return np.split(values, np.cumsum([len(query.positions) for query in queries])[:-1])


def parse_positions(text: str) -> tuple[int, ...]:
    """1-based positions from text such as ``5,10`` or ``1-30,45``, sorted, without repeats.

    Raises
    ------
    ConfigError
        Something that is no position or range.

    Examples
    --------
    >>> parse_positions("5,10-12")
    (5, 10, 11, 12)
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or int(first) < 1 or (dash and int(last) < int(first)):
            raise ConfigError(
                f"--positions {text}: {part!r} is no position; use numbers from 1 and ranges, as in 5,10 or 1-30"
            )
        found.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(found))


def queries_for(ids: np.ndarray, positions: np.ndarray, mask_id: int, together: bool) -> Iterator[MaskedQuery]:
    """Copies of a sequence with masks at 0-based `positions`: one copy for all, or one for each.

    Masks that the sequence has anyway stay in every copy.
    """
    groups = [positions] if together else [positions[i : i + 1] for i in range(len(positions))]
    for group in groups:
        masked = ids.copy()
        masked[group] = mask_id
        yield MaskedQuery(masked, group)


def pseudo_perplexity(log_likelihoods: np.ndarray) -> float:
    """exp of the mean negative log-likelihood, one mask at a time; nan without any position.

    References
    ----------
    Salazar et al. 2020, Masked Language Model Scoring, equation 2, per token.
    """
    return float(np.exp(-log_likelihoods.astype(np.float64).mean())) if len(log_likelihoods) else float("nan")
