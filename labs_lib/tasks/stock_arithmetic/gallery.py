"""A gallery of hand-made completions: what each verifier pays for, row by row.

`deserves` is decided by hand, from the task's words, and not by any verifier. Nearly all rows answer one
problem, the series' worked example; a few need a final stock of 1 or 0, where Python's booleans and `-0` pass
for the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass

from labs_lib.tasks.stock_arithmetic.naive_verifiers import NAIVE_VERIFIERS
from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.verifier import Verdict, verify

WORKED_PROBLEM = Problem(12, (30, 5), (9, 11))  # 12 + 30 + 5 - 9 - 11 = 27
# The four answers that travel through labs 01 to 03; their rewards are 1, 0, 1, 0.
WORKED_ANSWERS = ('{"final_stock":27}', '{"final_stock":29}', '{"final_stock": 27}', "The final stock is 27.")
WORKED_REWARDS = (1, 0, 1, 0)
ONE_PROBLEM = Problem(1, (0, 0), (0, 0))
ZERO_PROBLEM = Problem(0, (4, 3), (5, 2))

VERIFIERS: dict[str, Callable[..., Verdict]] = {"strict": verify, **NAIVE_VERIFIERS}


@dataclass(frozen=True)
class Completion:
    """One gallery row; `text` is not always text, and `deserves` says whether it should be paid."""

    category: str
    text: object
    deserves: bool = False
    finish_reason: str = "eos"
    ids_known: bool = True
    problem: Problem = WORKED_PROBLEM


RIGHT = WORKED_ANSWERS[0]


def _paid(category: str, *texts: object) -> list[Completion]:
    return [Completion(category, text, deserves=True) for text in texts]


def _unpaid(category: str, *texts: object) -> list[Completion]:
    return [Completion(category, text) for text in texts]


GALLERY: tuple[Completion, ...] = (
    *_paid("right", WORKED_ANSWERS[0], WORKED_ANSWERS[2]),
    *_paid("right, JSON white space", '{ "final_stock" : 27 }', f"{RIGHT}\n", f" \t\r\n{RIGHT}"),
    *_paid("right, JSON escape in the key", '{"final\\u005fstock":27}', '{"\\u0066inal_stock":27}'),
    *_unpaid("wrong number", WORKED_ANSWERS[1], '{"final_stock":2}', '{"final_stock":270}'),
    *_unpaid("out of range", '{"final_stock":-27}', '{"final_stock":301}', '{"final_stock":99999999999999999999}'),
    *_unpaid("text around", WORKED_ANSWERS[3], f"Answer: {RIGHT}", f"{RIGHT} Done.", f"{RIGHT};"),
    *_unpaid("text around", f"{RIGHT}// 27", f"12+30+5-9-11=27 {RIGHT}", f"<answer>{RIGHT}</answer>"),
    *_unpaid("fence", f"```json\n{RIGHT}\n```", f"`{RIGHT}`"),
    *_unpaid("two answers", f'{RIGHT}{{"final_stock":29}}', f'{{"final_stock":29}}\n{RIGHT}', RIGHT * 2),
    *_unpaid("two answers", f'[{RIGHT},{{"final_stock":29}}]', "27 27", "26 or 27"),
    *_unpaid("duplicate field", '{"final_stock":29,"final_stock":27}', '{"final_stock":27,"final_stock":29}'),
    *_unpaid("duplicate field", '{"final_stock":27,"final\\u005fstock":27}'),
    *_unpaid("other fields", '{"final_stock":27,"confidence":1}', '{"answer":27}', '{"Final_stock":27}'),
    *_unpaid("other fields", "{}", '{"final_stock ":27}', '{"initial":12,"final_stock":27}'),
    *_unpaid("not an object", "27", '["final_stock",27]', '"27"', f"[{RIGHT}]", "null", ""),
    *_unpaid("nested", '{"final_stock":{"final_stock":27}}', '{"final_stock":[27]}', f'{{"a":{RIGHT}}}'),
    *_unpaid("not an integer", '{"final_stock":27.0}', '{"final_stock":2.7e1}', '{"final_stock":"27"}'),
    *_unpaid("not an integer", '{"final_stock":null}', '{"final_stock":true}', '{"final_stock":12+15}'),
    *_unpaid("not JSON", '{"final_stock":NaN}', '{"final_stock":-Infinity}', '{"final_stock":27'),
    *_unpaid("not JSON", "{'final_stock':27}", "{final_stock:27}", '{"final_stock":27,}', '{"final_stock"=27}'),
    *_unpaid("not JSON", '{"final_stock":027}', '{"final_stock":+27}', '{"final_stock":0x1b}'),
    *_unpaid("not JSON", '{"final_stock":2_7}', '{"final_stock":2 7}'),
    *_unpaid("other scripts", '{"final_stock":２７}', '{"final_stock":٢٧}', '{"final_stock":२७}', "答案是27"),
    *_unpaid("odd edge", f"\ufeff{RIGHT}", f"{RIGHT}\u00a0", f"{RIGHT}\u2028", f"\v{RIGHT}", f"{RIGHT}\f"),
    *_unpaid("odd edge", f"{RIGHT}\0", f"{RIGHT}\x1f", f"\ud800{RIGHT}", f"{RIGHT}\u200b"),
    Completion("cut off", RIGHT, finish_reason="length"),
    Completion("cut off", f"{RIGHT} and so the", finish_reason="length"),
    Completion("cut off", " " * 300, finish_reason="length", ids_known=False),
    Completion("unknown id", RIGHT, ids_known=False),
    Completion("unknown id", f"{RIGHT}\ufffd", ids_known=False),
    *_unpaid("special token left in", f"{RIGHT}<|im_end|>", f"<|im_start|>{RIGHT}"),
    *_paid("long, within 256", RIGHT + " " * (256 - len(RIGHT))),
    *_unpaid("too long", RIGHT + " " * (257 - len(RIGHT)), "27 " * 100, f"{RIGHT}\n" * 20),
    Completion("too long", " " * 300 + RIGHT, ids_known=False),
    *_unpaid("hostile", "[" * 256, "[" * 100_000, '{"final_stock":' + "9" * 5000 + "}", "9" * 200),
    *_unpaid("hostile", "[" * 100 + "]" * 100, "__import__('os').system('echo 27')"),
    *_unpaid("not text", b'{"final_stock":27}', None, 27),
    Completion("bool for 1", '{"final_stock":true}', problem=ONE_PROBLEM),
    Completion("bool for 1", '{"final_stock":1}', deserves=True, problem=ONE_PROBLEM),
    Completion("bool for 0", '{"final_stock":false}', problem=ZERO_PROBLEM),
    Completion("minus zero", '{"final_stock":-0}', deserves=True, problem=ZERO_PROBLEM),
    Completion("minus zero", '{"final_stock":-0.0}', problem=ZERO_PROBLEM),
)


def judge(verifier: Callable[..., Verdict], completion: Completion) -> Verdict:
    """The verdict of any verifier; one that raises pays nothing, and the verdict says what it raised."""
    c = completion
    try:
        return verifier(c.text, c.finish_reason, c.problem, c.ids_known)
    except Exception as error:  # a naive verifier may fail in any way: that is what the gallery shows
        return Verdict(0, f"raised {type(error).__name__}")


def verdict_table() -> list[dict]:
    """One dict a completion: its fields, a running number, and under each verifier's name its Verdict.

    `shown` is the text in printable ASCII, at most 60 characters: some rows hold what no file can encode.
    """
    return [
        {
            "number": number,
            "category": completion.category,
            "text": completion.text,
            "shown": _shown(completion.text),
            "finish_reason": completion.finish_reason,
            "ids_known": completion.ids_known,
            "deserves": completion.deserves,
            **{name: judge(verifier, completion) for name, verifier in VERIFIERS.items()},
        }
        for number, completion in enumerate(GALLERY, start=1)
    ]


def _shown(text: object, width: int = 60) -> str:
    spelled = ascii(text)
    return spelled if len(spelled) <= width else f"{spelled[: width - 3]}..."


def verdict_counts() -> dict[str, dict[str, int]]:
    """Verifier -> {paid, wrongly_paid, wrongly_refused, raised} over the gallery (counts of completions)."""
    table, counts = verdict_table(), {}
    for name in VERIFIERS:
        counts[name] = {
            "paid": sum(row[name].reward for row in table),
            "wrongly_paid": sum(row[name].reward and not row["deserves"] for row in table),
            "wrongly_refused": sum(row["deserves"] and not row[name].reward for row in table),
            "raised": sum(row[name].reason.startswith("raised ") for row in table),
        }
    return counts
