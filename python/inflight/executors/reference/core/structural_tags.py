"""xgrammar's structural tags as grammars of llguidance.

Owns which formats there are, as TensorRT-LLM's xgrammar reads them, and how each is written in llguidance's
form of Lark. Pure. What cannot be written so is an error with its place, as a JSON pointer.

Free text (``any_text``, and what is around ``triggered_tags``) ends only where something ends it: the end of
the answer, or that of the tag around it. As in xgrammar it is therefore the last part of a sequence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .schemas import closed

Format = dict[str, Any]

#: Splits a text into ``(text, token)``: the special tokens in it, and the texts between with the token None.
Split = Callable[[str], list[tuple[str, int | None]]]


def as_text(text: str) -> list[tuple[str, int | None]]:
    """A `Split` for a tokenizer without special tokens."""
    return [(text, None)]


def lark(guide: Format, white_space: dict[str, str], split: Split = as_text) -> str:
    """The grammar of a guide: ``{"format": {…}}``, or the older ``{"structures": […], "triggers": […]}``.
    `white_space`: llguidance's options for JSON.

    Errors: ValueError, with the JSON pointer of what is malformed or cannot be followed.
    """
    writer = _Writer(white_space, split)
    if "format" in guide:
        start = writer.closed(_Place(guide, "").inner("format"), None)
    else:
        start = writer.legacy(_Place(guide, ""))
    return "\n".join([f"start: {start}", *writer.rules])


class _Place:
    """A value and where it is."""

    def __init__(self, value: Any, pointer: str) -> None:
        self.value, self.pointer = value, pointer

    def wrong(self, reason: str) -> ValueError:
        return ValueError(f"{reason}, at `{self.pointer}`" if self.pointer else reason)

    def inner(self, name: str) -> _Place:
        """A field that must be there."""
        if not isinstance(self.value, dict):
            raise self.wrong("it must be an object")
        if name not in self.value:
            raise self.wrong(f"it has no `{name}`")
        return _Place(self.value[name], f"{self.pointer}/{name}")

    def text(self, name: str) -> str:
        field = self.inner(name)
        if not isinstance(field.value, str):
            raise field.wrong("it must be a string")
        return field.value

    def flag(self, name: str) -> bool:
        value = self.value.get(name, False)
        if not isinstance(value, bool):
            raise self.inner(name).wrong("it must be true or false")
        return value

    def items(self, name: str) -> list[_Place]:
        field = self.inner(name)
        if not isinstance(field.value, list) or not field.value:
            raise field.wrong("it must be a non-empty list")
        return [_Place(item, f"{field.pointer}/{index}") for index, item in enumerate(field.value)]

    def refuse(self, *names: str) -> None:
        """Fields that would change what is allowed, unless they are empty."""
        for name in names:
            if self.value.get(name):
                raise self.inner(name).wrong("it is not supported")


class _Writer:
    """Writes rules, each under a unique name."""

    def __init__(self, white_space: dict[str, str], split: Split) -> None:
        self._white_space, self._split = white_space, split
        self.rules = ["TEXT: /(.|\\n)*/"]

    def legacy(self, guide: _Place) -> str:
        """The older form, which is ``triggered_tags`` of schemas."""
        structures = guide.items("structures")
        contents = []
        for structure in structures:
            schema = structure.inner("schema")
            if isinstance(schema.value, str):
                schema.value = json.loads(schema.value)
            contents.append(_joined(self._schema(schema), self._literal(structure.text("end"))))
        return self._triggered(guide, structures, contents, None)

    def closed(self, place: _Place, end: str | None) -> str:
        """A rule for a format and the text `end` after it; None: the answer ends with the format."""
        kind = place.text("type")
        if kind == "any_text":
            place.refuse("excludes", "excluded_str", "excluded_strs")
            return self._text(end)
        if kind == "triggered_tags":
            place.refuse("excludes")
            tags = place.items("tags")
            contents = [self._content(tag) for tag in tags]
            return self._triggered(place, tags, contents, end)
        if kind == "sequence":
            *first, last = place.items("elements")
            return self._rule(" ".join([*map(self._bounded, first), self.closed(last, end)]))
        if kind == "or":
            return self._rule(" | ".join(self.closed(one, end) for one in place.items("elements")))
        return self._rule(_joined(self._bounded(place), self._literal(end or "")))

    def _bounded(self, place: _Place) -> str:
        """A rule for a format that ends by itself."""
        kind = place.text("type")
        if kind == "json_schema":
            return self._schema(place.inner("json_schema"))
        if kind == "const_string":
            return self._rule(self._literal(place.text("value")))
        if kind == "regex":
            return self._rule(_regex(place.text("pattern")))
        if kind == "sequence":
            return self._rule(" ".join(map(self._bounded, place.items("elements"))))
        if kind == "or":
            return self._rule(" | ".join(map(self._bounded, place.items("elements"))))
        if kind == "tag":
            return self._tag(place)
        if kind == "tags_with_separator":
            return self._separated(place)
        if kind == "triggered_tags" and place.flag("at_least_one") and place.flag("stop_after_first"):
            # One tag and no text around it.
            return self.closed(place, None)
        if kind in ("any_text", "triggered_tags"):
            raise place.wrong(
                f"`{kind}` has no end here; make it the last element, or put it into a `tag` with an `end`"
            )
        raise place.inner("type").wrong(f"the format `{kind}` is not supported")

    def _tag(self, tag: _Place) -> str:
        return self._rule(_joined(self._literal(tag.text("begin")), self._content(tag)))

    def _content(self, tag: _Place) -> str:
        """What follows the beginning of a tag, its end included."""
        end = tag.text("end")
        content = tag.inner("content")
        if end:
            return self.closed(content, end)
        return self._bounded(content)

    def _separated(self, place: _Place) -> str:
        tag = self._rule(" | ".join(map(self._tag, place.items("tags"))))
        separator = self._literal(place.text("separator"))
        body = tag if place.flag("stop_after_first") else f"{tag} ({_joined(separator, tag)})*"
        return self._rule(body if place.flag("at_least_one") else f"({body})?")

    def _triggered(self, place: _Place, tags: list[_Place], contents: list[str], end: str | None) -> str:
        """Text that is free up to a trigger. `contents`: what follows the beginning of each tag."""
        triggers = place.items("triggers")
        after: list[list[str]] = [[] for _ in triggers]
        begun = []
        for tag, content in zip(tags, contents, strict=True):
            begin = tag.text("begin")
            known = (isinstance(one.value, str) and one.value for one in triggers)
            matching = [at for at, one in enumerate(known) if one and begin.startswith(one)]
            if not matching:
                raise tag.inner("begin").wrong(f"no trigger begins `{begin}`")
            if len(matching) > 1:
                raise tag.inner("begin").wrong(f"several triggers begin `{begin}`")
            rest = begin[len(triggers[matching[0]].value) :]
            after[matching[0]].append(_joined(self._literal(rest), content))
            begun.append(_joined(self._literal(begin), content))
        heads = []
        for trigger, rests in zip(triggers, after, strict=True):
            if not rests:
                raise trigger.wrong("no tag begins with it")
            heads.append(_joined(self._text(trigger.value), f"({' | '.join(rests)})"))
        triggered = self._rule(" | ".join(heads))
        free = self._text(end)
        if place.flag("stop_after_first"):
            closing = self._literal(end or "")
            if place.flag("at_least_one"):
                return self._rule(_joined(f"({' | '.join(begun)})", closing))
            return self._rule(f"{_joined(triggered, closing)} | {free}")
        body = f"({triggered})* {free}"
        if place.flag("at_least_one"):
            body = f"({' | '.join(begun)}) {body}"
        return self._rule(body)

    def _schema(self, place: _Place) -> str:
        schema = {} if place.value is True else place.value
        if not isinstance(schema, dict):
            raise place.wrong("the JSON schema matches nothing")
        try:
            schema = closed(schema)
        except ValueError as error:
            raise place.wrong(str(error)) from error
        return self._rule(f"%json {json.dumps({'x-guidance': self._white_space, **schema})}")

    def _text(self, end: str | None) -> str:
        """The shortest text that ends with `end`; None: any text."""
        if not end:
            # A separate rule, so that it may be empty.
            return self._rule("TEXT")
        (first, token), *others = self._split(end)
        if token is not None:
            # No text has the token.
            return self._rule(f"TEXT {self._literal(end)}")
        if not others:
            return self._rule(f"TEXT {json.dumps(first)}", "[lazy]")
        name = f"TEXT{len(self.rules)}"
        self.rules.append(f"{name}: /(.|\\n)*/ {json.dumps(first)}")
        return self._rule(f"{name} {self._literal(end[len(first) :])}")

    def _literal(self, text: str) -> str:
        """`text` as the grammar writes it. What is a special token is that token: no text matches it."""
        parts = self._split(text) if text else []
        return _joined(*(json.dumps(part) if token is None else f"<[{token}]>" for part, token in parts))

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {body or json.dumps('')}")
        return name


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _regex(pattern: str) -> str:
    """A regular expression between slashes."""
    written, is_escaped = [], False
    for character in pattern:
        escape = character == "/" and not is_escaped
        written.append("\\/" if escape else "\\n" if character == "\n" and not is_escaped else character)
        is_escaped = character == "\\" and not is_escaped
    return f"/{''.join(written)}/"
