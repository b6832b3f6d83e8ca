"""Plausible wrong answers to the one small exercise that shows what an exercise is."""


def from_zero(numbers):
    return max(0, *numbers)


def smallest(numbers):
    return min(numbers)


def last(numbers):
    return numbers[-1]


def largest_magnitude(numbers):
    return max(numbers, key=abs)


def printed(numbers):
    print(max(numbers))


MUTANTS = {"largest_operand": [from_zero, smallest, last, largest_magnitude, printed]}
