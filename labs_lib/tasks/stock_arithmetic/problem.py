"""The StockArithmetic problem and its deterministic solver.

A problem is `{initial, deliveries: [a, b], withdrawals: [c, d]}`, all integers in 0..100. The stock starts at
`initial`, the two deliveries arrive, then the two withdrawals leave, in the listed order; no intermediate
stock is negative. The answer is the final stock.
"""

from dataclasses import dataclass

from labs_lib.errors import LabError

OPERAND_MAX = 100
MOVEMENTS = 2
FINAL_STOCK_MAX = OPERAND_MAX * (1 + MOVEMENTS)
KEYS = ("initial", "deliveries", "withdrawals")


class ProblemError(LabError):
    """A problem that the solver rejects; the message names the field and what it must be."""


@dataclass(frozen=True, order=True)
class Problem:
    """One valid problem (units: items of stock). Build one from outside data with `parse_problem`."""

    initial: int
    deliveries: tuple[int, int]
    withdrawals: tuple[int, int]

    def stocks(self) -> list[int]:
        """Stock after the start and after each of the four movements, in order."""
        stocks = [self.initial]
        for change in (*self.deliveries, *(-w for w in self.withdrawals)):
            stocks.append(stocks[-1] + change)
        return stocks

    @property
    def final_stock(self) -> int:
        return self.stocks()[-1]

    def key(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Normalised key: no permutation of the same movements may cross a split."""
        return self.initial, tuple(sorted(self.deliveries)), tuple(sorted(self.withdrawals))

    def as_dict(self) -> dict:
        return {
            "initial": self.initial,
            "deliveries": list(self.deliveries),
            "withdrawals": list(self.withdrawals),
        }


def _operand(value: object, name: str) -> int:
    # bool is a subclass of int in Python; True must not be read as the operand 1.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProblemError(f"{name} must be an integer, not {value!r} ({type(value).__name__}): write a whole number.")
    if not 0 <= value <= OPERAND_MAX:
        raise ProblemError(f"{name} is {value}, outside 0..{OPERAND_MAX}: choose an operand in that range.")
    return value


def _movements(value: object, name: str) -> tuple[int, int]:
    if not isinstance(value, (list, tuple)) or len(value) != MOVEMENTS:
        raise ProblemError(f"{name} must be a list of exactly {MOVEMENTS} integers, not {value!r}.")
    first, second = (_operand(item, f"{name}[{index}]") for index, item in enumerate(value))
    return first, second


def parse_problem(data: object) -> Problem:
    """Check outside data and return the `Problem`.

    Raises:
        ProblemError: wrong keys, wrong types (booleans included), an operand outside 0..100, or a movement
            that would make the stock negative.
    """
    if not isinstance(data, dict):
        raise ProblemError(f"a problem must be an object with the keys {', '.join(KEYS)}, not {data!r}.")
    if set(data) != set(KEYS):
        raise ProblemError(
            f"a problem has exactly the keys {', '.join(KEYS)}; got {', '.join(map(str, data)) or 'none'}."
        )
    problem = Problem(
        _operand(data["initial"], "initial"),
        _movements(data["deliveries"], "deliveries"),
        _movements(data["withdrawals"], "withdrawals"),
    )
    stocks = problem.stocks()
    if min(stocks) < 0:
        step = next(index for index, stock in enumerate(stocks) if stock < 0)
        raise ProblemError(f"the stock becomes {stocks[step]} after movement {step}: withdraw no more than is there.")
    return problem


def solve(data: object) -> int:
    """Final stock (0..300) of a problem given as a dict; the same errors as `parse_problem`."""
    return parse_problem(data).final_stock
