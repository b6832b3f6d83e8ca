"""`make tiny-base`: train the tiny base again and write its card; `--check` replays the decontamination proof."""

import argparse
from collections.abc import Sequence

from labs_lib.errors import VerificationError
from labs_lib.runtime import start
from labs_lib.storage import read_json
from labs_lib.tools.command_line import command_line


def check() -> None:
    """Replay the training text and compare with the training record.

    Raises:
        VerificationError: the text differs from the recorded one, or something reserved was in it.
    """
    from labs_lib.models.tiny_base.build import BASE, RECIPE, TRAINING_RECORD
    from labs_lib.models.tiny_base.decontamination import check_decontamination, training_chats
    from labs_lib.tasks.stock_arithmetic.corpus import normalised_keys

    proof = check_decontamination(training_chats(RECIPE, normalised_keys()))
    recorded = read_json(BASE / TRAINING_RECORD)["decontamination"]
    differing = [name for name in proof if proof[name] != recorded[name]]
    if differing or any(proof[name] for name in proof if name.endswith("_seen")):
        raise VerificationError(f"The training text is not the recorded, clean one: {', '.join(differing) or proof}.")
    print(f"{proof['chats']:,} chats replayed: no corpus problem, no corpus statement, no reserved prompt")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, or with `--card` only measure and describe what is there, or with `--check` only replay."""
    parser = argparse.ArgumentParser(prog="make tiny-base", description=__doc__)
    parser.add_argument("--card", action="store_true", help="keep the weights, measure them and write the card again")
    parser.add_argument("--check", action="store_true", help="replay the training text and prove it clean")
    options = parser.parse_args(arguments)
    if options.check:
        check()
        return 0
    profile = start("tiny")
    from labs_lib.models.tiny_base.build import build
    from labs_lib.tools.tiny_base_card import write_card

    if not options.card:
        build()
    write_card(profile)
    return 0


if __name__ == "__main__":
    command_line(main)
