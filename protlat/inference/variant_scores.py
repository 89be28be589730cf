"""How likely a masked-language model finds a variant beside its wild type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from protlat.errors import SequenceError
from protlat.inference.masked import MaskedPredictor, MaskedQuery, queries_for
from protlat.inference.variants import Variant

if TYPE_CHECKING:
    from protlat.models import MaskedLM

Scoring = Literal["wt-marginal", "masked-marginal", "pseudo-perplexity"]
_BATCHES_HELD = 8
Advance = Callable[[int], None]


class VariantScorer:
    """Scores variants; higher means closer to what the model expects, 0 is the wild type.

    Parameters
    ----------
    model : MaskedLM
        In evaluation mode, on its device.
    toks_per_batch : int
        Tokens of one forward pass: copies of a sequence are packed up to this many.

    Notes
    -----
    With x the wild type, x' the variant and M the positions that differ:

    - wt-marginal: sum over M of log p(x'_i | x) - log p(x_i | x), one pass for all variants;
    - masked-marginal: the same with position i hidden, one pass for each position that any variant changes;
    - pseudo-perplexity: the difference of the two pseudo-log-likelihoods, sum over all i of log p(x_i | x without i), one
      pass for each residue of each variant.

    The marginals add up over mutations: what two of them do to each other shows in the third only.

    References
    ----------
    Meier et al. 2021, Language models enable zero-shot prediction of the effects of mutations on protein function,
    section 3; Salazar et al. 2020, Masked Language Model Scoring, equation 1.
    """

    def __init__(self, model: MaskedLM, toks_per_batch: int) -> None:
        self._predictor = MaskedPredictor(model, toks_per_batch)
        self._alphabet = model.alphabet
        self.residues = self._predictor.residues
        self._column = {residue: index for index, residue in enumerate(self.residues)}

    def table(
        self, sequence: str, positions: Sequence[int], scoring: Scoring, name: str, advance: Advance = lambda n: None
    ) -> np.ndarray:
        """Log-probabilities of the 20 residues at 0-based `positions`, shape (P, R), float32.

        Parameters
        ----------
        sequence : str
        positions : sequence of int
            Ascending.
        scoring : str
            "wt-marginal": the residue itself is seen; otherwise it is hidden.
        name : str
            For messages.
        advance : callable
            Receives the number of positions done.
        """
        ids = self._alphabet.encode(sequence)
        at = np.asarray(positions, dtype=np.int64)
        if scoring == "wt-marginal":
            queries: Iterable[MaskedQuery] = [MaskedQuery(ids, at)] if len(at) else []
        else:
            queries = queries_for(ids, at, self._alphabet.mask_id, together=False)
        rows = []
        for values in self._stream((query, name) for query in queries):
            rows.append(values)
            advance(len(values))
        return np.concatenate(rows) if rows else np.empty((0, len(self.residues)), np.float32)

    def effects(self, table: np.ndarray, wild_types: str) -> np.ndarray:
        """Score of each residue beside the wild type's own, shape (P, R), float64, from a `table`."""
        own = [self._column[letter] for letter in wild_types]
        wide = table.astype(np.float64)
        difference: np.ndarray = wide - wide[np.arange(len(own)), own][:, None]
        return difference

    def marginals(
        self, sequence: str, offset: int, variants: Sequence[Variant], scoring: Scoring, name: str,
        advance: Advance = lambda n: None,
    ) -> np.ndarray:  # fmt: skip
        """Scores of variants that fit the sequence, shape (V,), float64."""
        positions = changed_positions(variants, offset)
        table = self.table(sequence, positions, scoring, name, advance)
        effects = self.effects(table, "".join(sequence[position] for position in positions))
        row_of = {position: row for row, position in enumerate(positions)}
        return np.array(
            [sum(effects[row_of[m.position - offset], self._column[m.mutant]] for m in v.mutations) for v in variants],
            dtype=np.float64,
        )

    def pseudo_log_likelihoods(
        self, sequences: Sequence[str], names: Sequence[str], advance: Advance = lambda n: None
    ) -> Iterator[float]:
        """Sum over the 20 residues' positions of each one's log-probability, hidden alone.

        Yields
        ------
        float
            Per sequence, in order.

        Raises
        ------
        SequenceError
            A sequence has no residue of the 20.
        """
        counts: list[int] = []

        def queries() -> Iterator[tuple[MaskedQuery, str]]:
            for sequence, name in zip(sequences, names, strict=True):
                ids = self._alphabet.encode(sequence)
                at = np.flatnonzero(np.isin(ids, self._alphabet.replacement_ids))
                if not len(at):
                    raise SequenceError(f"sequence {name!r}: no standard residue to score")
                counts.append(len(at))
                for query in queries_for(ids, at, self._alphabet.mask_id, together=False):
                    # The hidden residue is known from the sequence, so it travels with the query.
                    yield query, f"{name}\0{sequence[int(query.positions[0])]}"

        total, n_done, index = 0.0, 0, 0
        for values, letter in self._stream_named(queries()):
            total += float(values[0, self._column[letter]])
            n_done += 1
            advance(1)
            if n_done == counts[index]:
                yield total
                total, n_done, index = 0.0, 0, index + 1

    def _stream_named(self, pairs: Iterable[tuple[MaskedQuery, str]]) -> Iterator[tuple[np.ndarray, str]]:
        for group in _groups(pairs, _BATCHES_HELD * self._predictor.toks_per_batch):
            names = [label.partition("\0")[0] for _, label in group]
            for index, values in self._predictor.run([query for query, _ in group], names):
                yield values, group[index][1].rpartition("\0")[2]

    def _stream(self, pairs: Iterable[tuple[MaskedQuery, str]]) -> Iterator[np.ndarray]:
        for values, _ in self._stream_named(pairs):
            yield values


def _groups(pairs: Iterable[tuple[MaskedQuery, str]], budget: int) -> Iterator[list[tuple[MaskedQuery, str]]]:
    """Consecutive queries of about `budget` tokens: copies of a sequence wait for their batch, so their number is bounded."""
    held: list[tuple[MaskedQuery, str]] = []
    used = 0
    for pair in pairs:
        held.append(pair)
        used += len(pair[0].ids) + 2
        if used >= budget:
            yield held
            held, used = [], 0
    if held:
        yield held


def changed_positions(variants: Iterable[Variant], offset: int) -> list[int]:
    """0-based positions that any variant changes, ascending."""
    return sorted({mutation.position - offset for variant in variants for mutation in variant.mutations})


def apply_variant(sequence: str, variant: Variant, offset: int) -> str:
    """The variant's sequence."""
    letters = list(sequence)
    for mutation in variant.mutations:
        letters[mutation.position - offset] = mutation.mutant
    return "".join(letters)


def n_tokens_needed(n_residues: int, n_positions: int, n_variants: int, scoring: Scoring) -> int:
    """Tokens that a scoring computes, for the estimate before it starts."""
    n_passes = {"wt-marginal": 1, "masked-marginal": n_positions, "pseudo-perplexity": (n_variants + 1) * n_residues}
    return (n_residues + 2) * n_passes[scoring]
