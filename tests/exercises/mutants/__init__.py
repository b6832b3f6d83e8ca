"""Plausible wrong answers to every exercise: a module a lab, each with `MUTANTS` by the name of the exercise."""

from collections.abc import Callable
from typing import Any


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a wrong answer what it does wrong, for the message of a check that lets it through."""
    function.__name__ = name
    return function
