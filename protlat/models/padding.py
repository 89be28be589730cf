"""Padded batches of sequences of any lengths, and packed ones of few sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from protlat.ops.segments import Segments, rounded_size


def round_up(x: torch.Tensor, segments: Segments, fill: int) -> tuple[torch.Tensor, Segments]:
    """Add filler rows to x (T, ...) on CPU, so that batches come in few sizes.

    oneDNN, which multiplies bfloat16 matrices on CPU, builds and keeps a program for every new number of rows: with
    batches of any size that costs a third of the speed and memory that grows with every batch. The filler is one more
    sequence, and sequences do not see each other.
    """
    missing = rounded_size(len(x)) - len(x)
    if missing == 0 or x.device.type != "cpu":
        return x, segments
    return F.pad(x, (*(0, 0) * (x.dim() - 1), 0, missing), value=fill), segments.with_filler(missing)


def pad_sequences(sequences: Sequence[torch.Tensor], fill: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """One padded batch of sequences of any lengths, for `forward_padded`.

    Parameters
    ----------
    sequences : sequence of torch.Tensor, shape (L_i,) tokens or (L_i, E) vectors
        At least one, each of at least one row.
    fill : int
        What stands in the padding; no model reads it.

    Returns
    -------
    padded : torch.Tensor, shape (B, L) or (B, L, E)
    mask : torch.Tensor, shape (B, L), bool
        True = token.

    Raises
    ------
    ValueError
        No sequences, or an empty one.

    Examples
    --------
    >>> import torch
    >>> from protlat.models import pad_sequences
    >>> padded, mask = pad_sequences([torch.tensor([5, 6, 7]), torch.tensor([8])])
    >>> padded.tolist(), mask.sum(1).tolist()
    ([[5, 6, 7], [8, 0, 0]], [3, 1])
    """
    if not sequences or any(len(sequence) == 0 for sequence in sequences):
        raise ValueError("pad_sequences needs at least one sequence, and at least one row in each")
    padded = nn.utils.rnn.pad_sequence(list(sequences), batch_first=True, padding_value=fill)
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=padded.device)
    return padded, torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
