"""Chat templates are programs from a stranger's file: this is where they run.

Jinja's immutable sandbox keeps a template from attributes and from changing what it is given. It
does not bound time or memory, so here every operation that can make something long is measured
before it is done (measure.py): rounds of loops and calls are counted, texts and lists by their
length.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rebar.dataflow.text.measure import (
    Budget,
    check_numbers,
    length_of,
    length_of_call,
    length_of_format,
    length_of_power,
    length_of_product,
    length_of_sum,
    size_of,
)

# Filters that no chat template needs and whose cost is hard to foresee.
DROPPED = ("center", "pprint", "random", "sum", "urlize", "wordwrap", "xmlattr")
# Filters that begin by making a text of what they are given.
TEXT_FILTERS = frozenset({
    "capitalize", "e", "escape", "forceescape", "indent", "lower", "replace", "safe", "string",
    "striptags", "title", "trim", "truncate", "upper", "urlencode", "wordcount",
})  # fmt: skip
OPERATORS = {
    "+": length_of_sum,
    "*": length_of_product,
    "**": length_of_power,
    "%": length_of_format,
}


class TemplateRefusal(TemplateError):
    """raise_exception(): the template does not take these messages."""


class GenerationTag(Extension):
    """{% generation %} marks the assistant's words for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (declared by Jinja as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        """The statements between the tags."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment that Hugging Face's chat templates expect, with measured operations."""

    intercepted_binops = frozenset(OPERATORS)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed before there is a budget
            finalize=self.as_text,
            extensions=[loopcontrols, GenerationTag],
        )
        self.budget = Budget()
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = refuse
        self.globals["strftime_now"] = strftime_now
        for name in DROPPED:
            self.filters.pop(name)
        self.filters = {name: self._measured(name, f) for name, f in self.filters.items()}
        self.filters["tojson"] = self.to_json

    def compiled(self, source: str) -> Template:
        """The template with its operations measured. Raises jinja2's TemplateSyntaxError."""
        tree = self.parse(source)
        _measure(tree)
        tree.set_lineno(1).set_environment(self)
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def step(self) -> str:
        """Called by a compiled template on each round of a loop."""
        self.budget.step()
        return ""

    def sized(self, value: object) -> object:
        """A list or mapping that the template spells out."""
        self.budget.spend(size_of(value))
        return value

    def joined(self, *values: object) -> str:
        """The `~` operator."""
        texts = [self.as_text(value) for value in values]
        self.budget.spend(sum(map(len, texts)))
        return "".join(texts)

    def as_text(self, value: object) -> str:
        """What `{{ value }}` prints."""
        if isinstance(value, str):
            return value
        self.budget.spend(size_of(value, printed=True))
        return str(value)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Measures what an operator makes, then does it."""
        self.budget.spend(OPERATORS[operator](left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:
        """A call out of a template."""
        name = getattr(__obj, "__name__", "")
        method = getattr(__obj, "__wrapped__", __obj)  # str.format comes wrapped by the sandbox
        given = [__self._listed(a) for a in args]
        __self._before(name, getattr(method, "__self__", None), [*given, *kwargs.values()])
        result = super().call(__context, __obj, *given, **kwargs)
        __self.budget.spend(size_of(result) if isinstance(result, dict) else length_of(result))
        return result

    def to_json(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as Hugging Face's templates expect it: not escaped for HTML, not only ASCII."""
        if indent is not None:
            check_numbers("tojson", [indent * 100])
        encoder = json.JSONEncoder(
            ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
        )
        parts = []
        for part in encoder.iterencode(value):
            self.budget.spend(len(part))
            parts.append(part)
        text = "".join(parts)
        return _ascii(text) if ensure_ascii else text

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose arguments and result are measured."""
        passed = 1 if hasattr(function, "jinja_pass_arg") else 0

        def measured(*args: object, **kwargs: object) -> object:
            before, value, rest = args[:passed], self._listed(args[passed]), args[passed + 1 :]
            if name in TEXT_FILTERS and not isinstance(value, str):
                value = self.as_text(value)
            self._before(name, value, [*rest, *kwargs.values()])
            result = function(*before, value, *rest, **kwargs)
            self.budget.spend(length_of(result))
            return result

        return functools.update_wrapper(measured, function)

    def _listed(self, value: object) -> object:
        return self.budget.listed(value) if isinstance(value, Iterator) else value

    def _before(self, name: str, subject: object, arguments: list[object]) -> None:
        self.budget.step()
        if name != "safe_range":  # has its own limit
            check_numbers(name, arguments)
        self.budget.spend(length_of_call(name, subject, arguments))


def refuse(message: str = "") -> str:
    """The raise_exception of templates."""
    raise TemplateRefusal(str(message)[:2000])


def strftime_now(form: str) -> str:
    """The date and time, as templates ask for it."""
    if len(form) > 100 or re.search(r"%.?\d", form):
        raise SecurityError("it asks for an odd date")
    return datetime.now().strftime(form)


def _measure(tree: nodes.Template) -> None:
    """Puts a step into each loop and macro, and measures `~` and literals."""
    _replace(tree)
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
        node.body.insert(0, nodes.ExprStmt(_call("step", [])))


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """A call of the environment's own method; a template's variables cannot stand before it."""
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _replace(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, nodes.Node):
                    value[i] = _replaced(item)
        elif isinstance(value, nodes.Node):
            setattr(node, field, _replaced(value))


def _replaced(node: nodes.Node) -> nodes.Node:
    _replace(node)
    if isinstance(node, nodes.Concat):
        return _call("joined", node.nodes)
    if isinstance(node, nodes.List | nodes.Dict) or (
        isinstance(node, nodes.Tuple) and node.ctx == "load"
    ):
        return _call("sized", [node])
    return node


def _ascii(text: str) -> str:
    r"""Characters past ASCII as \u escapes; noncharacters stay, they mark borders (chat.py)."""

    def escaped(match: re.Match[str]) -> str:
        return match[0] if is_noncharacter(match[0]) else json.dumps(match[0])[1:-1]

    return re.sub(r"[^\x00-\x7f]", escaped, text)


def is_noncharacter(char: str) -> bool:
    """One of the 66 code points that never stand for a character (Unicode 16, 23.7)."""
    return "\ufdd0" <= char <= "\ufdef" or ord(char) & 0xFFFE == 0xFFFE


def noncharacters() -> Iterable[str]:
    """All 66."""
    yield from map(chr, range(0xFDD0, 0xFDF0))
    for plane in range(17):
        yield chr(plane << 16 | 0xFFFE)
        yield chr(plane << 16 | 0xFFFF)
