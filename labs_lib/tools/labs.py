"""The one table of the labs: which there are, what each needs, and what each leaves for others."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labs_lib.errors import LabError
from labs_lib.optional import require_installed
from labs_lib.scale.engine import COMMAND, PACKAGES

LAB_FILE = re.compile(r"\d\d_[a-z0-9_]+")


@dataclass(frozen=True)
class Lab:
    """A notebook, named by its path below `notebooks/` without the ending.

    `needs` names labs whose outputs it reads: it never starts before they are there. `outputs` are glob
    patterns below `outputs/<profile>/` that it alone writes and that must exist after it has run; `optional`
    ones it writes too, but not on every profile. `minutes` (> 0) is about what it takes on one core with
    `tiny`; the order in which labs start follows from it, and nothing else does. `extra` are packages that it needs
    beyond `requirements.txt`: such a lab runs only where it is asked for by name.
    """

    name: str
    needs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    minutes: float = 0.5
    extra: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        """Patterns of everything that it alone writes."""
        return (*self.outputs, *self.optional)


def _branches(*names: str) -> tuple[str, ...]:
    """The evidence of trained branches, one file each."""
    return tuple(f"evidence/branches/{name}.json" for name in names)


LABS = (
    Lab("00_start_here", minutes=0.2),
    Lab("01_verifier", minutes=0.4),
    Lab("02_group_advantages", minutes=1.1),
    Lab(
        "03_grpo_training",
        outputs=_branches("warmstart", "sft", "grpo", "grpo-g2", "grpo-g8", "grpo-shuffled"),
        optional=_branches("warmstart-weak", "grpo-weak"),
        minutes=7,
    ),
    Lab("04_sft_and_reward_model", outputs=_branches("sft-office", "judge"), minutes=4),
    Lab(
        "05_ppo_gae",
        needs=("04_sft_and_reward_model",),
        outputs=_branches(
            *("ppo", "judge-courtesy", "ppo-courtesy", "judge-confidence", "ppo-confidence", "ppo-rubric", "dpo")
        ),
        minutes=8,
    ),
    Lab("06_bias_bench", outputs=("evidence/verdicts.json",), minutes=1.4),
    Lab("07_scale_out", outputs=("scale/summary.json",), minutes=4, extra=PACKAGES),
    Lab("solutions/01_solutions"),
    Lab("solutions/02_solutions"),
    Lab("solutions/03_solutions", needs=("03_grpo_training",)),
    Lab("solutions/04_solutions"),
    Lab("solutions/05_solutions", needs=("05_ppo_gae",)),
    Lab("solutions/06_solutions"),
    Lab("solutions/07_solutions"),
)


def is_solution(lab: Lab) -> bool:
    """Solutions are compared by `make test` and refreshed, and left out of `make run-all`."""
    return lab.name.startswith("solutions/")


def select(labs: Iterable[Lab], words: Iterable[str]) -> list[Lab]:
    """The labs whose file name begins with one of `words` (`02`, `03_grpo`); for no words, all without `extra` needs.

    Raises LabError for a word that selects nothing, and for a lab whose packages are not installed.
    """
    labs, words = list(labs), [word.removesuffix(".ipynb") for word in words]
    for word in words:
        if not any(_matches(lab, word) for lab in labs):
            raise LabError(f"No lab begins with {word!r}; the labs are: {', '.join(lab.name for lab in labs)}.")
    chosen = [lab for lab in labs if (any(_matches(lab, word) for word in words) if words else not lab.extra)]
    for lab in chosen:
        require_installed(lab.extra, COMMAND, lab.name)
    return chosen


def _matches(lab: Lab, word: str) -> bool:
    return lab.name.startswith(word) or lab.name.rpartition("/")[2].startswith(word)


def with_needs(chosen: Iterable[Lab], labs: Iterable[Lab]) -> list[Lab]:
    """`chosen` and everything that they need, in an order in which every need comes first.

    Raises LabError for a need that is not in the table, or that needs itself.
    """
    table = {lab.name: lab for lab in labs}
    ordered: dict[str, Lab] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise LabError(f"Labs need each other in a circle: {' -> '.join([*above, name])}.")
        if name not in table:
            raise LabError(f"{above[-1]} needs {name}, which is not in the table of labs.")
        for need in table[name].needs:
            visit(need, (*above, name))
        ordered.setdefault(name, table[name])

    for lab in chosen:
        visit(lab.name, ())
    return list(ordered.values())


def longest_first(labs: Iterable[Lab]) -> list[Lab]:
    """`labs` by the longest chain of minutes that each one begins, so that no long chain is left to the end.

    A need comes before its users, since its chain holds theirs. Equal chains keep their order.
    """
    labs = list(labs)

    def chain(lab: Lab) -> float:
        return lab.minutes + max((chain(user) for user in labs if lab.name in user.needs), default=0)

    return sorted(labs, key=chain, reverse=True)


def table_problems(labs: Iterable[Lab], notebooks: Path) -> list[str]:
    """Where the table and the folder disagree; copies and scratch notebooks of a student are no labs."""
    listed = {lab.name for lab in labs}
    found = {
        path.relative_to(notebooks).with_suffix("").as_posix()
        for folder in (notebooks, notebooks / "solutions")
        for path in folder.glob("*.ipynb")
        if LAB_FILE.fullmatch(path.stem)
    }
    return [f"notebooks/{name}.ipynb is listed in labs_lib/tools/labs.py and missing" for name in listed - found] + [
        f"notebooks/{name}.ipynb is not listed in labs_lib/tools/labs.py" for name in found - listed
    ]


def main(words: Sequence[str]) -> None:
    """Print the notebooks that `words` select, one a line: what `make test` compares."""
    for lab in select(LABS, words):
        print(f"notebooks/{lab.name}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
