"""Every position that the controls of a play can reach, as a space of inputs."""

from hypothesis import strategies

from labs_lib.interactive.play import Choice, Play


def positions(play: Play) -> strategies.SearchStrategy:
    """A strategy for {name: value}, with the ends of every slider among the values."""
    return strategies.fixed_dictionaries({name: _values(control) for name, control in play.controls.items()})


def _values(control) -> strategies.SearchStrategy:
    if isinstance(control, Choice):
        return strategies.sampled_from(control.options)
    if control.whole:
        return strategies.integers(control.low, control.high)
    steps = round((control.high - control.low) / control.step)
    grid = strategies.integers(0, steps).map(lambda step: min(control.low + step * control.step, control.high))
    return strategies.sampled_from([control.low, control.start, control.high]) | grid
