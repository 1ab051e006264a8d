"""A guard against slower kernels that does not look at a clock: instructions of one step.

python tools/count_steps.py BINARY [--record]: runs native/tests/count_step.cpp under callgrind,
which counts the same every time, and compares with native/tests/instructions.json. Records are kept
by compiler, since another one makes other code. Without a record for this one, only the ratios are
checked: rows that share a step must share its work. Exit code 1 when a count or ratio is too high.

Instructions are not time: a prefetch costs one and may save hundreds of cycles. A change that is
faster by the clock and costs more instructions is recorded anew, in the same commit, and the commit
says why.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

RECORDS = Path(__file__).parents[1] / "native" / "tests" / "instructions.json"
STEPS = ("prompt", "one", "eight")
# Far above what another patch release of a compiler changes, far below what a lost loop costs.
MARGIN = 0.10
PROMPT_ROWS = 64
# Weights are unpacked once for several rows. On AVX2, with four rows in flight, one of eight costs
# two thirds of a single one, and a row of a prompt, most of them without a head, three fifths.
EIGHT_OVER_ONE = 7.0
PROMPT_ROW_OVER_ONE = 0.8

Counts = Mapping[str, int]


def count(binary: Path, step: str) -> int:
    """Instructions of one step. CalledProcessError when valgrind or the step fails."""
    command = [
        "valgrind", "--tool=callgrind", "--toggle-collect=rb_counted_step",
        "--callgrind-out-file=/dev/null", str(binary), step,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found or int(found[1]) == 0:
        sys.stderr.write(done.stderr)
        raise subprocess.CalledProcessError(done.returncode or 1, command)
    return int(found[1])


def complaints(counts: Counts, recorded: Counts | None) -> list[str]:
    """What is too high, in words; nothing when all is well."""
    found = []
    for step in STEPS if recorded else ():
        now, then = counts[step], recorded[step] if recorded else 0
        if now > then * (1 + MARGIN):
            found.append(
                f"step {step}: {now:,} instructions, {now / then - 1:+.0%} over the {then:,} on "
                f"record; {MARGIN:.0%} are allowed"
            )
    eight, row = counts["eight"] / counts["one"], counts["prompt"] / PROMPT_ROWS / counts["one"]
    if eight > EIGHT_OVER_ONE:
        found.append(f"eight rows cost {eight:.1f} x one row; {EIGHT_OVER_ONE} x are allowed")
    if row > PROMPT_ROW_OVER_ONE:
        found.append(f"a row of a prompt costs {row:.2f} x one; {PROMPT_ROW_OVER_ONE} x allowed")
    return found


def remarks(counts: Counts, recorded: Counts | None, compiler: str) -> list[str]:
    """What is worth knowing and no fault."""
    if recorded is None:
        return [f"no record for {compiler}: ratios alone were checked"]
    better = [s for s in STEPS if counts[s] < recorded[s] * (1 - MARGIN)]
    if better:
        return [f"fewer instructions than on record ({', '.join(better)}): record them"]
    return []


def main() -> int:
    """Counts, compares, says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path, help="rebar_count_step of a Release build")
    parser.add_argument("--record", action="store_true", help="take these counts as the measure")
    given = parser.parse_args()
    command = [str(given.binary), "version"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        print("left out: this machine or build has no AVX2, and valgrind knows nothing above it")
        return 0
    compiler = asked.stdout.strip()
    records: dict[str, dict[str, int]] = json.loads(RECORDS.read_text())
    counts = {step: count(given.binary, step) for step in STEPS}
    print(f"{compiler}: " + ", ".join(f"{step} {n:,}" for step, n in counts.items()))
    if given.record:
        records[compiler] = counts
        RECORDS.write_text(json.dumps(records, indent=2, sort_keys=True) + "\n")
        return 0
    wrong = complaints(counts, records.get(compiler))
    for line in (*remarks(counts, records.get(compiler), compiler), *wrong):
        print(line)
    if wrong:
        print(
            "A kernel does more than it did. If that is meant (faster by `rebar bench engine`): "
            f"python tools/count_steps.py {given.binary} --record, and say why in the commit."
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
