"""Exercises of lab 07: sample deviation, settings of several processes, k3 with its correction, training's memory."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch

from labs_lib.exercises.check import Comparison, Exercise, Property, close, gradients
from labs_lib.kernels.kl import sampled_kl_estimators


def _all(comparisons: Any) -> Comparison:
    """The first comparison that fails, or one that holds."""
    return next((comparison for comparison in comparisons if not comparison), Comparison())


# --- 1: the sample's deviation -----------------------------------------------------------------------

DEVIATION_FACTOR = Exercise(
    "deviation_factor",
    (
        Property("in a group of four it is 0.866", lambda f: close(f(4), sqrt(3 / 4), 1e-9)),
        Property(
            "it is a ratio of two deviations of the same rewards, for every group size",
            lambda f: _all(close(f(size), sqrt((size - 1) / size), 1e-9) for size in (2, 3, 8, 64)),
        ),
    ),
)

# --- 2: the settings of several processes ------------------------------------------------------------

Settings = Callable[..., dict[str, int]]
ALONE = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 6, "max_steps": 20}
KEYS = set(ALONE)


def _settings(expected: dict[str, int], *arguments: int) -> Callable[[Settings], Comparison]:
    def holds(function: Settings) -> Comparison:
        found = function(*arguments)
        if not isinstance(found, dict) or set(found) != KEYS:
            return Comparison(f"the result is not a dict with the keys {', '.join(sorted(KEYS))}")
        return _all(close(found[key], value) for key, value in expected.items())

    return holds


PROCESS_SETTINGS = Exercise(
    "process_settings",
    (
        Property(
            "the batch size of a process counts its own answers, not prompts and not everybody's",
            _settings({"per_device_train_batch_size": 8}, 4, 4, 2, 2, 100, 2),
        ),
        Property(
            "processes x accumulation x batch size is all answers of an iteration",
            _settings({"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}, 16, 8, 2, 2, 100, 2),
        ),
        Property(
            "steps are updates, of which an iteration has several", _settings({"max_steps": 300}, 4, 4, 2, 1, 100, 3)
        ),
        Property(
            "on one process nothing is shared",
            _settings(ALONE, 6, 4, 1, 1, 10, 2),
        ),
    ),
)

# --- 3: k3 -------------------------------------------------------------------------------------------

Estimator = Callable[..., torch.Tensor]
NOW = -torch.tensor([[0.5, 1.5, 0.25], [2.0, 0.125, 4.0]], dtype=torch.float64)
OLD = NOW + torch.tensor([[0.1, -0.2, 0.0], [0.3, 0.0, -0.5]], dtype=torch.float64)
REFERENCE = NOW + torch.tensor([[0.2, -0.4, 0.0], [1.0, 0.5, -0.3]], dtype=torch.float64)


def _k3(now: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return sampled_kl_estimators(now, reference).k3


def _gradient(f: Estimator, corrected: bool) -> Comparison:
    found = gradients(lambda now: f(now, REFERENCE, OLD, corrected), NOW)[0]
    slope = 1 - (REFERENCE - NOW).exp()
    ratio = (NOW - OLD).exp()
    return close(found, ratio * (slope + _k3(NOW, REFERENCE)) if corrected else slope, 1e-9)


KL_ESTIMATE = Exercise(
    "kl_estimate",
    (
        Property(
            "uncorrected it is k3 of each token", lambda f: close(f(NOW, REFERENCE, OLD, False), _k3(NOW, REFERENCE))
        ),
        Property(
            "corrected it is k3 times the ratio of now to old",
            lambda f: close(f(NOW, REFERENCE, OLD, True), _k3(NOW, REFERENCE) * (NOW - OLD).exp()),
        ),
        Property("equal policies are 0 apart", lambda f: close(f(NOW, NOW, OLD, True), torch.zeros_like(NOW))),
        Property("uncorrected, its gradient is that of k3", lambda f: _gradient(f, False)),
        Property("corrected, a gradient flows through the ratio too", lambda f: _gradient(f, True)),
    ),
)

# --- 4: memory of the states -------------------------------------------------------------------------

TRAINING_BYTES = Exercise(
    "training_bytes",
    (
        Property("in FP32 with a reference: 20 bytes a parameter", lambda f: close(f(1_000, 4, 4), 20_000)),
        Property(
            "the reference is read only: it has no gradients and no moments", lambda f: close(f(1_000, 4, 2), 18_000)
        ),
        Property("without a KL term there is no reference", lambda f: close(f(1_000, 4, 0), 16_000)),
        Property(
            "Adam's moments stay FP32 when the weights are BF16", lambda f: close(f(7, 2, 2), 7 * (2 + 2 + 8 + 2))
        ),
    ),
)
