"""Every proof under load, one after another, in one table: python -m bench.load_all

About half an hour on two quiet cores; --only some. bench.load_peers needs peers and stands apart.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from bench.harness import Line, note
from bench.serving import arguments, finish

PROOFS = ("front", "crowd", "leave", "burst", "kills", "offline", "prefix")


def prove(name: str, given: argparse.Namespace) -> list[Line]:
    """One proof with its own defaults; one that breaks is a line that does not hold."""
    module = import_module(f"bench.load_{name}")
    note(f"== {name}")
    fields = argparse.Namespace(**module.DEFAULTS, model=given.model, log=given.log)
    try:
        lines: list[Line] = module.prove(fields)
    except Exception as error:  # whatever one does, the others are proven
        note(f"{name}: {type(error).__name__}: {error}")
        return [Line(name, "", f"failed: {type(error).__name__}", met=False)]
    return [Line(f"{name}: {x.figure}", x.target, x.ours, x.theirs, x.ratio, x.met) for x in lines]


def main() -> None:
    """Proves and prints."""
    given = arguments(__doc__, only=" ".join(PROOFS))
    names = given.only.split()
    sys.exit(finish([line for name in names for line in prove(name, given)]))


if __name__ == "__main__":
    main()
