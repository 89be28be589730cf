"""Temperature and threshold: found again where they are known."""

from __future__ import annotations

import numpy as np
import pytest

from protlat.evaluation.calibration import (
    calibration_error,
    fit_temperature,
    fit_threshold,
    negative_log_likelihood,
    probabilities,
)
from protlat.tasks.data import TaskType


def drawn(task_type: TaskType, temperature: float, n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are `temperature` times too sure, and labels drawn from the true probabilities."""
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(n, 4)) * 2
    truth = probabilities(logits, task_type)
    if task_type == "sequence_multilabel":
        return logits * temperature, rng.random((n, 4)) < truth
    labels = (rng.random(n)[:, None] > truth.cumsum(1)).sum(1)
    labels[::10] = -1
    return logits * temperature, labels


@pytest.mark.parametrize("task_type", ["sequence_class", "sequence_multilabel"])
@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_temperature_is_found(task_type: TaskType, temperature: float) -> None:
    logits, labels = drawn(task_type, temperature)
    found = fit_temperature(logits, labels, task_type)
    assert found == pytest.approx(temperature, rel=0.05)
    before, after = (negative_log_likelihood(logits, labels, task_type, t) for t in (1.0, found))
    assert after < before


def test_calibrated_probabilities_are_frequencies() -> None:
    logits, labels = drawn("sequence_class", 3.0)
    assert calibration_error(probabilities(logits, "sequence_class"), labels) > 0.15
    found = fit_temperature(logits, labels, "sequence_class")
    assert calibration_error(probabilities(logits, "sequence_class", found), labels) < 0.02


def test_no_labels_leave_the_temperature_alone() -> None:
    assert fit_temperature(np.zeros((3, 2)), np.full(3, -1), "sequence_class") == 1.0


def test_thresholds() -> None:
    probability = np.array([[0.9, 0.3], [0.35, 0.1], [0.1, 0.4], [0.2, 0.05]])
    labels = np.array([[True, True], [True, False], [False, True], [False, False]])
    assert 0.2 < fit_threshold(probability, labels) <= 0.3
    binary = np.array([0.1, 0.2, 0.3, 0.35, 0.9])
    truth = np.array([0, 0, 1, -1, 1])
    assert fit_threshold(np.stack([1 - binary, binary], 1), truth) == pytest.approx(0.3)
