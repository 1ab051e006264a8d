"""Seconds from the start of a process to its first token, the model's pages in memory.

python -m bench.start PEERS MODEL.gguf: our command line on the converted file; the same in Python,
which tells the engine's part (mapping, planning, tokenizing, the first step) from importing; and
llama.cpp through its Python binding on the .gguf file. In turns; the first round only warms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.harness import Command, Facts, note, number, rebar

PROMPT = "The capital of France is"
LIMIT_S = 60
# Imports first, so that what is left is the engine's.
PARTS = f"""
import json, sys, time
from pathlib import Path
begin = time.perf_counter()
import rebar.dataflow.models, rebar.service.loading, rebar.service.local
from rebar.graph import RunnerOptions
imported = time.perf_counter()
file = rebar.dataflow.models.open_model(Path(sys.argv[1]))
loaded = rebar.service.loading.load_model(file, RunnerOptions(), name="model", chat=False)
model = rebar.service.local.Model(loaded.served, loaded.engine)
ready = time.perf_counter()
next(iter(model.stream({PROMPT!r}, max_tokens=1, temperature=0)), None)
end = time.perf_counter()
print(json.dumps({{"import": imported - begin, "load": ready - imported, "first": end - ready}}))
"""
LLAMA = f"""
import sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_threads=int(sys.argv[2]), verbose=False)
for part in model({PROMPT!r}, max_tokens=1, temperature=0, stream=True):
    print(part["choices"][0]["text"], flush=True)
"""


def convert(model: Path, folder: Path) -> Path:
    """The model as a .rebar file in a folder. CalledProcessError when it cannot be had."""
    target = folder / f"{model.stem}.rebar"
    command = rebar("convert", str(model), str(target))
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=600)
    return target


def until_output(command: Command) -> float | None:
    """Seconds from starting a process to the first byte it prints; None when there is none."""
    begin = time.perf_counter()
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            seconds = time.perf_counter() - begin
            process.communicate(timeout=LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        note(f"  failed: {type(error).__name__}")
        return None
    return seconds if first and process.returncode == 0 else None


def parts(model: Path) -> Facts:
    """Seconds of importing, of loading and of the first token, inside one process."""
    command = [sys.executable, "-c", PARTS, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    facts: Facts = json.loads(done.stdout)
    return facts


def measure(peers: Path, model: Path, threads: int, count: int) -> Facts:
    """Medians: ours_s, engine_s (load and first token), import_s; llama_s where it is there."""
    with tempfile.TemporaryDirectory() as folder:
        file = convert(model, Path(folder))
        seconds = in_turns(file, commands(peers, model, file, threads), count)
    return {name: statistics.median(values) for name, values in seconds.items()}


def commands(peers: Path, model: Path, file: Path, threads: int) -> dict[str, Command]:
    """What prints a first token, ours first."""
    words = ["--model", str(file), "--max-tokens", "1", "--temperature", "0"]
    found = {"ours_s": rebar("generate", PROMPT, *words, "--threads", str(threads))}
    python = peers / "llama" / "bin" / "python"
    if python.exists():
        found["llama_s"] = [str(python), "-c", LLAMA, str(model), str(threads)]
    return found


def in_turns(file: Path, engines: Mapping[str, Command], count: int) -> dict[str, list[float]]:
    """Seconds by fact, a round each; the first round, which warms, is left out."""
    seconds: dict[str, list[float]] = {}
    for round_ in range(count + 1):
        note(f"round {round_} of {count}")
        found = {name: until_output(command) for name, command in engines.items()}
        inside = parts(file)
        found |= {"engine_s": inside["load"] + inside["first"], "import_s": inside["import"]}
        for name, value in found.items():
            if round_ and value is not None:
                seconds.setdefault(name, []).append(value)
    return seconds


def table(facts: Mapping[str, float]) -> list[str]:
    """A line a fact."""
    names = {
        "ours_s": "rebar generate, to the first byte",
        "engine_s": "  of that the engine: load, first token",
        "import_s": "  importing it, in Python",
        "llama_s": "llama.cpp through its binding",
    }
    return [f"{names[name]:<42}{number(facts.get(name)):>8} s" for name in names]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", type=Path, help="folder with the peers' virtual environments")
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    facts = measure(given.peers, given.model.resolve(), given.threads, given.rounds)
    print(json.dumps(facts) if given.json else "\n".join(table(facts)))


if __name__ == "__main__":
    main()
