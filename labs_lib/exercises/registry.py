"""Which lab has which exercises."""

from importlib import import_module

from labs_lib.errors import LabError
from labs_lib.exercises.check import Exercise


def exercises_of(lab: str) -> dict[str, Exercise]:
    """The exercises of a lab, by the name of the function that a student writes, in the lab's order.

    `lab` is its name or its two digits. Raises LabError for a lab without a module of exercises.
    """
    module = f"labs_lib.exercises.lab{lab[:2]}"
    try:
        found = vars(import_module(module)).values()
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise LabError(f"Lab {lab} has no exercises that a check outside of its notebook knows.") from None
    return {exercise.name: exercise for exercise in found if isinstance(exercise, Exercise)}
