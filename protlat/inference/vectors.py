"""From residues to vectors: the model's side of `protlat embed`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protlat.data.packing import pack_ids, with_specials
from protlat.errors import SequenceError
from protlat.inference.batches import BatchRunner
from protlat.inference.naming import Column
from protlat.inference.settings import LongConfig
from protlat.inference.windows import blend_weights, window_spans
from protlat.models.recurrence import passes_state
from protlat.nn.state import RecurrentState

if TYPE_CHECKING:
    from protlat.models import Encoder

Vectors = dict[Column, np.ndarray]


class Embedder:
    """Runs an encoder over sequences in batches of a bounded number of tokens.

    Parameters
    ----------
    encoder : Encoder
        In evaluation mode, on its device.
    columns : sequence of Column
        What to take out.
    toks_per_batch : int
        Tokens of one forward pass; a longer sequence is a batch of its own.
    long : LongConfig
        Only its policy "window" matters here: cutting and skipping is done where sequences are read.
    store : str
        "float16" or "float32".
    """

    def __init__(
        self,
        encoder: Encoder,
        columns: Sequence[Column],
        toks_per_batch: int,
        long: LongConfig | None = None,
        store: str = "float32",
    ) -> None:
        self.encoder = encoder
        self.columns = tuple(columns)
        self.toks_per_batch = toks_per_batch
        self.long = long or LongConfig()
        self.store = np.dtype(store)
        self._layers = tuple(sorted({column.layer for column in columns}))
        self._device = next(encoder.parameters()).device
        self._runner: BatchRunner[np.ndarray, dict[int, torch.Tensor]]
        self._runner = BatchRunner(self._states, len, toks_per_batch, self._device)

    def run(self, sequences: Sequence[np.ndarray], names: Sequence[str]) -> Iterator[tuple[int, Vectors]]:
        """Vectors of every sequence, in the order in which they are finished.

        Parameters
        ----------
        sequences : sequence of numpy.ndarray, shape (L,), unsigned integers
            Residue ids without specials; none empty.
        names : sequence of str
            What to call each in messages.

        Yields
        ------
        index : int
            Place in `sequences`.
        vectors : dict of Column to numpy.ndarray
            ``mean`` and ``cls``: shape (E,); ``per_tok``: shape (L, E); of type `store`.

        Raises
        ------
        OutOfMemoryOnOne
            A sequence does not fit into the device's memory even alone.
        SequenceError
            A vector is not finite, or too large for float16.
        """
        threshold = self.long.threshold if self.long.policy == "window" else None
        # Length order puts sequences of a kind together; it never leaves this call.
        order = sorted(range(len(sequences)), key=lambda i: (len(sequences[i]), i))
        whole = [i for i in order if threshold is None or len(sequences[i]) <= threshold]
        pieces = [with_specials(sequences[i], self.encoder.alphabet) for i in whole]
        for place, states in self._runner.run(pieces, [names[i] for i in whole]):
            index = whole[place]
            yield index, self._finish(self._reduce(states, len(sequences[index])), names[index])
        for index in order[len(whole) :]:
            yield index, self._finish(self._windowed(sequences[index], names[index]), names[index])

    def _states(self, pieces: Sequence[np.ndarray]) -> list[dict[int, torch.Tensor]]:
        """Hidden states of each piece by layer, (len(piece), E)."""
        if len(pieces) == 1 and len(pieces[0]) > self.toks_per_batch and passes_state(self.encoder.config):
            return [self._states_in_turn(pieces[0])]
        batch = pack_ids(pieces).to(self._device)
        hidden = self.encoder(batch.tokens, batch.segments, layers=self._layers)
        split = {layer: states.split(batch.segments.lengths) for layer, states in hidden.items()}
        return [{layer: states[i] for layer, states in split.items()} for i in range(len(pieces))]

    def _states_in_turn(self, ids: np.ndarray) -> dict[int, torch.Tensor]:
        """The same of one long sequence and a causal model: parts that pass the state on, in the memory of one part."""
        state, found = RecurrentState(), dict[int, torch.Tensor]()
        for start in range(0, len(ids), self.toks_per_batch):
            part = pack_ids([ids[start : start + self.toks_per_batch]], [start]).to(self._device)
            hidden = self.encoder(part.tokens, part.segments, layers=self._layers, state=state)
            state = state.next()
            for layer, states in hidden.items():
                if layer not in found:
                    found[layer] = states.new_empty(len(ids), states.shape[1])
                found[layer][start : start + len(states)] = states
        return found

    def _reduce(self, states: dict[int, torch.Tensor], n_residues: int) -> dict[Column, torch.Tensor]:
        """Take the asked-for vectors, in float32, out of the states of <cls>, the residues and <eos>."""
        found: dict[Column, torch.Tensor] = {}
        with torch.inference_mode():
            for layer, state in states.items():
                residues = state[1 : 1 + n_residues]
                makers: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
                    "mean": lambda state, residues: residues.mean(0, dtype=torch.float32),
                    "per_tok": lambda state, residues: residues.float(),
                    "cls": lambda state, residues: state[0].float(),
                }
                for column in self.columns:
                    if column.layer == layer:
                        found[column] = makers[column.kind](state, residues)
        return found

    def _windowed(self, ids: np.ndarray, name: str) -> dict[Column, torch.Tensor]:
        """Blend the vectors of overlapping windows.

        Residues: weighted mean over the windows that hold them; ``mean``: over the blended residues; ``cls``: the plain
        average over the windows.
        """
        spans = window_spans(len(ids), self.long.window, self.long.overlap)
        alphabet = self.encoder.alphabet
        # <eos> only where the sequence truly ends.
        pieces = [with_specials(ids[a:b], alphabet, end=b == len(ids)) for a, b in spans]
        total: dict[int, torch.Tensor] = {}
        cls: dict[int, torch.Tensor] = {}
        weight_sum = torch.zeros(len(ids))
        for place, states in self._runner.run(pieces, [name] * len(pieces)):
            start, stop = spans[place]
            weights = torch.from_numpy(blend_weights(stop - start, self.long.overlap))
            weight_sum[start:stop] += weights
            for layer, state in states.items():
                vectors = state.float().cpu()
                if layer not in total:
                    total[layer] = torch.zeros(len(ids), vectors.shape[1])
                    cls[layer] = torch.zeros(vectors.shape[1])
                total[layer][start:stop] += vectors[1 : 1 + stop - start] * weights[:, None]
                cls[layer] += vectors[0] / len(spans)
        found: dict[Column, torch.Tensor] = {}
        for layer, summed in total.items():
            summed /= weight_sum[:, None]
            ready = {"mean": summed.mean(0), "per_tok": summed, "cls": cls[layer]}
            found.update({column: ready[column.kind] for column in self.columns if column.layer == layer})
        return found

    def _finish(self, found: dict[Column, torch.Tensor], name: str) -> Vectors:
        return {column: _to_store(found[column], self.store, name, column) for column in self.columns}


def _to_store(vector: torch.Tensor, store: np.dtype[Any], name: str, column: Column) -> np.ndarray:
    lowest, highest = torch.aminmax(vector)
    largest = max(float(-lowest), float(highest))
    where = f"sequence {name!r}: its {column.kind} vector from layer {column.layer}"
    if not np.isfinite(float(lowest)) or not np.isfinite(float(highest)):
        raise SequenceError(f"{where} is not finite: the model's weights are damaged or overflow in this precision")
    if store == np.float16 and largest > float(np.finfo(np.float16).max):
        raise SequenceError(f"{where} holds {largest:.3g}, beyond float16's 65504; use --store float32")
    return vector.to(torch.float16 if store == np.float16 else torch.float32).cpu().numpy()
