"""Chat messages to a prompt, by the model's own template.

Control tokens come out of the template's own words and nowhere else: in every text of the caller
each spelling of a control token is broken by a noncharacter that occurs in none of them, the
template is rendered, the result is cut at control tokens, and the noncharacter is taken out of the
ordinary text in between, which is encoded as ordinary text. So the ids decode to exactly what was
written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError

from rebar.dataflow.text.messages import Messages, checked_messages, copied
from rebar.dataflow.text.sandbox import TemplateRefusal, TemplateSandbox, noncharacters
from rebar.dataflow.text.tokenizer import Tokenizer
from rebar.errors import CorruptFileError, InputError

LONGEST_SOURCE = 1 << 20
Tools = Sequence[Mapping[str, Any]]

# What template code can raise besides Jinja's own errors: it works on values it did not expect.
_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class ChatTemplate:
    """A compiled template; may be used by any thread."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises CorruptFileError when `source` is no template that this build can read.

        An empty source stands for a model without one: rendering then raises InputError.
        """
        self._tokenizer = tokenizer
        self._source = source
        self._sandbox = TemplateSandbox()
        self._template = _compiled(self._sandbox, source) if source.strip() else None
        self._controls = _Controls(tokenizer.control_texts())
        self._tokens = {
            name: tokenizer.token_bytes(id).decode("utf-8", "replace")
            for name, id in (
                ("bos_token", tokenizer.bos_id),
                ("eos_token", tokenizer.eos_id),
                ("unk_token", tokenizer.unknown_id),
                ("pad_token", tokenizer.pad_id),
            )
            if id is not None
        }

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of its source."""
        return hashlib.sha256(self._source.encode()).hexdigest()

    def render(
        self, messages: Messages, *, tools: Tools | None = None, add_generation_prompt: bool = True
    ) -> str:
        """The prompt as text, as transformers' apply_chat_template renders it.

        Content lists, null content, roles and tool calls by the rules of messages.py. Raises
        InputError for messages that are malformed, that the template refuses (with its words), or
        that it would leave out.
        """
        return self._render(messages, tools, add_generation_prompt, lambda text: text)

    def encode(
        self, messages: Messages, *, tools: Tools | None = None, add_generation_prompt: bool = True
    ) -> list[int]:
        """The prompt as ids. Control ids come from the template alone; it also decides on bos."""
        border = self.border(messages, tools)
        return self.ids_of(self.bordered(messages, tools, add_generation_prompt, border), border)

    def border(self, messages: Messages, tools: Tools | None) -> str:
        """A noncharacter that occurs in none of these texts."""
        seen: set[str] = set()

        def look(text: str) -> str:
            seen.update(re.findall(r"[\ufdd0-\ufdef\U0000fffe-\U0010ffff]", text))
            return text

        checked_messages(messages, look)
        copied(list(tools or []), "tools", look)
        return self._border(seen)

    def bordered(
        self, messages: Messages, tools: Tools | None, add_generation_prompt: bool, border: str
    ) -> str:
        """As render, with `border` inside whatever the caller spells like a control token."""
        return self._render(
            messages, tools, add_generation_prompt, lambda t: self._controls.broken(t, border)
        )

    def ids_of(self, text: str, border: str, *, continued: bool = False) -> list[int]:
        """Ids of a bordered text, or of a part of one. continued: its beginning is not that of a
        text, so that no space is put before it.
        """
        ids: list[int] = []
        for number, part in enumerate(self._tokenizer.split(text)):
            if isinstance(part, int):
                ids.append(part)
            elif plain := part.replace(border, ""):
                if continued and number == 0:
                    ids += self._tokenizer.encode_on(plain)
                else:
                    ids += self._tokenizer.encode(plain, bos=False)
        return ids

    def _border(self, seen: set[str]) -> str:
        for char in noncharacters():
            if char not in seen and char not in self._source:
                return char
        raise InputError("the messages use all 66 noncharacters of Unicode. Take one out.")

    def _render(
        self,
        messages: Messages,
        tools: Tools | None,
        add_generation_prompt: bool,
        text: Callable[[str], str],
    ) -> str:
        if self._template is None:
            raise InputError(
                "this model has no chat template. Send the prompt to /v1/completions instead.",
                code="no_chat_template",
            )
        ready = checked_messages(messages, text)
        variables = {
            "messages": ready,
            "tools": copied(list(tools), "tools", text) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._tokens,
        }
        rendered = self._run(self._template, variables)
        _check_complete(rendered, ready)
        return rendered

    def _run(self, template: Template, variables: Mapping[str, Any]) -> str:
        budget = self._sandbox.budget
        budget.reset()
        parts, total = [], 0
        try:
            for part in template.generate(variables):
                parts.append(part)
                total += len(part)
                budget.check(total)
        except TemplateRefusal as error:
            raise InputError(
                f"the model's chat template refuses: {error}", param="messages"
            ) from error
        except (TemplateError, *_FAULTS) as error:
            raise InputError(
                f"the model's chat template cannot render these messages: {_words(error)}. "
                "Change them, or send the prompt to /v1/completions.",
                param="messages",
            ) from error
        return "".join(parts)


def _words(error: BaseException) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _compiled(sandbox: TemplateSandbox, source: str) -> Template:
    if len(source) > LONGEST_SOURCE:
        raise CorruptFileError(f"the chat template has {len(source)} characters. Convert it again.")
    try:
        return sandbox.compiled(source)
    except (TemplateError, SyntaxError, MemoryError, *_FAULTS) as error:
        raise CorruptFileError(
            f"the model's chat template cannot be read: {_words(error)}. "
            "Use a file with a correct one."
        ) from error


def _check_complete(rendered: str, messages: list[dict[str, Any]]) -> None:
    """Refuses a prompt that lacks what a user or system message says.

    Looks on from the last one found, since templates write them in order: to read the whole prompt
    again for each message would be quadratic.
    """
    at = 0
    for i, message in enumerate(messages):
        if message["role"] not in {"system", "user"}:
            continue
        text = message["content"].strip()
        found = rendered.find(text, at)
        at = rendered.find(text) if found < 0 else found
        if at < 0:
            raise InputError(
                f"the model's chat template leaves out messages[{i}] (role {message['role']}). "
                "Put its text into a message the template takes.",
                param=f"messages[{i}]",
            )


class _Controls:
    """The spellings of control tokens, to be broken in texts of the caller."""

    def __init__(self, texts: list[str]) -> None:
        self._first = {text[0] for text in texts}
        self._last = {text[-1] for text in texts}
        self._texts = frozenset(texts)
        self._beginnings = frozenset(t[:n] for t in texts for n in range(1, len(t)))
        self._endings = frozenset(t[n:] for t in texts for n in range(1, len(t)))
        self._longest = max(map(len, texts), default=0)

    def broken(self, text: str, border: str) -> str:
        """`text` with `border` inside each spelling, and where it could be one half of it."""
        if not text or not self._texts:
            return text
        cuts = self._inside(text)
        for n in range(1, min(len(text), self._longest) + 1):
            if text[-n:] in self._beginnings:
                cuts.add(len(text))
            if text[:n] in self._endings:
                cuts.add(0)
        if not cuts:
            return text
        places = [0, *sorted(cuts), len(text)]
        return border.join(text[a:b] for a, b in pairwise(places))

    def _inside(self, text: str) -> set[int]:
        """A place within each spelling of a control token, overlapping ones too."""
        cuts = set()
        for at, char in enumerate(text):
            if char in self._first and self._starts(text, at):
                cuts.add(at + 1)
        return cuts

    def _starts(self, text: str, at: int) -> bool:
        """Whether some control token stands at `at`."""
        for n in range(1, self._longest + 1):
            part = text[at : at + n]
            if part in self._texts:
                return True
            if part not in self._beginnings:
                return False
        return False
