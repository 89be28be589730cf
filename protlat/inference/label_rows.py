"""Rows of the tables that `protlat predict` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from protlat.inference.label_prediction import Answer
from protlat.models.head_file import HeadFile

Row = tuple[Any, ...]


def sequence_columns(head: HeadFile, per_class: bool) -> dict[str, type]:
    """Names and types of the table with a row a sequence."""
    columns: dict[str, type] = {"identifier": str, "length": int}
    if head.type == "sequence_value":
        return {**columns, "value": float}
    if head.type == "residue_value":
        return {**columns, "mean_value": float}
    if head.type == "residue_class":
        return {**columns, "labels": str, "mean_probability": float}
    if head.type == "sequence_multilabel":
        columns |= {"labels": str, "probabilities": str}
    else:
        columns |= {"label": str, "probability": float}
    return columns | _class_columns(head, per_class)


def residue_columns(head: HeadFile, per_class: bool) -> dict[str, type]:
    """Names and types of the table with a row a residue."""
    columns: dict[str, type] = {"identifier": str, "position_1based": int, "residue": str}
    if head.type == "residue_value":
        return {**columns, "value": float}
    return {**columns, "label": str, "probability": float} | _class_columns(head, per_class)


def _class_columns(head: HeadFile, per_class: bool) -> dict[str, type]:
    return {f"p({name})": float for name in head.classes} if per_class else {}


def sequence_row(head: HeadFile, name: str, length: int, answer: Answer, per_class: bool) -> Row:
    """The row of one sequence; `answer` is of one row, or of its residues.

    Labels of residues are one letter each; where a class has a longer name, they are joined by commas.
    """
    if answer.values is not None:
        return name, length, float(answer.values.mean())
    assert answer.probability is not None
    assert answer.chosen is not None
    if head.type == "residue_class":
        between = "" if all(len(one) == 1 for one in head.classes) else ","
        labels = between.join(head.classes[code] for code in answer.chosen)
        return name, length, labels, float(_of_chosen(answer).mean())
    more = tuple(float(p) for p in answer.probability[0]) if per_class else ()
    if head.type == "sequence_multilabel":
        codes = np.flatnonzero(answer.chosen[0])
        # The likeliest first.
        codes = codes[np.argsort(-answer.probability[0][codes], kind="stable")]
        shown = ";".join(f"{answer.probability[0][code]:.4f}" for code in codes)
        return name, length, ";".join(head.classes[code] for code in codes), shown, *more
    return name, length, head.classes[int(answer.chosen[0])], float(_of_chosen(answer)[0]), *more


def residue_rows(head: HeadFile, name: str, letters: Sequence[str], answer: Answer, per_class: bool) -> Iterator[Row]:
    """The rows of one sequence's residues."""
    if answer.values is not None:
        for position, (letter, value) in enumerate(zip(letters, answer.values.tolist(), strict=True), start=1):
            yield name, position, letter, value
        return
    assert answer.probability is not None
    assert answer.chosen is not None
    columns = zip(letters, answer.chosen.tolist(), _of_chosen(answer).tolist(), answer.probability, strict=True)
    for position, (letter, code, probability, every) in enumerate(columns, start=1):
        yield name, position, letter, head.classes[code], probability, *(every.tolist() if per_class else ())


def _of_chosen(answer: Answer) -> np.ndarray:
    """Probability of the class that was chosen, (N,)."""
    assert answer.probability is not None
    assert answer.chosen is not None
    found: np.ndarray = answer.probability[np.arange(len(answer.chosen)), answer.chosen]
    return found
