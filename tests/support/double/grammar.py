"""As much of `xgrammar` as guides are checked with, and what an engine makes of one that it does not take."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any


class Grammar:
    """`xgrammar.Grammar`: its constructors, which raise as upstream's do."""

    @staticmethod
    def from_json_schema(schema: str) -> Grammar:
        held = _parsed(schema, "/project/cpp/json_schema_converter.cc:4939: Failed to parse JSON")
        if isinstance(held, dict) and held.get("type") == "objec":
            raise RuntimeError('/project/cpp/json_schema_converter.cc:4944: Unsupported type "objec"')
        return Grammar()

    @staticmethod
    def from_regex(regex: str) -> Grammar:
        if "(?=" in regex:
            raise RuntimeError(
                "[00:00:00] /project/cpp/regex_converter.cc:83: Regex parsing error at position 3: "
                "Lookahead is not supported yet.\n"
            )
        return Grammar()

    @staticmethod
    def from_ebnf(grammar: str) -> Grammar:
        if "root ::=" not in grammar:
            raise RuntimeError("/project/cpp/grammar_parser.cc:106: EBNF parser error")
        return Grammar()

    @staticmethod
    def from_structural_tag(tag: str) -> Grammar:
        """The later form only, as from 0.1.25 on."""
        if "format" not in _parsed(tag, "Invalid structural tag error"):
            raise RuntimeError("Invalid structural tag error: Structural tag must have a format field")
        return Grammar()


def _parsed(text: str, words: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise RuntimeError(f"{words}. The JSON string is:{text}") from None


def fault_of(params: Any) -> str:
    """What compiling a request's guide raises in the engine's iteration; empty: nothing."""
    given = {} if params is None else params.values
    return fault(getattr(given.get("guide_type"), "name", ""), given.get("guide"))


def fault(kind: str, guide: str | None) -> str:
    """The same of a type and a guide."""
    constructors = {
        "JSON_SCHEMA": Grammar.from_json_schema,
        "REGEX": Grammar.from_regex,
        "EBNF_GRAMMAR": Grammar.from_ebnf,
        "STRUCTURAL_TAG": Grammar.from_structural_tag,
    }
    construct = constructors.get(kind)
    if construct is None or guide is None:
        return ""
    try:
        construct(guide)
    except RuntimeError as error:
        return str(error)
    return ""


def only_text(kind: str, guide: str) -> str | None:
    """The one text that a guide leaves; None: it leaves more, or that is not seen here."""
    if kind == "JSON_SCHEMA":
        held = json.loads(guide)
        return json.dumps(held["const"]) if isinstance(held, dict) and "const" in held else None
    if kind == "REGEX":
        return guide if guide.isalpha() else None
    text = guide.removeprefix("root ::= ").strip('"') if kind == "EBNF_GRAMMAR" else ""
    return text if text.isalpha() else None


def tokens_of(kind: str, guide: str | None, model: Path) -> list[int] | None:
    """The tokens of the only text that a guide leaves, where the model's vocabulary has it as one word."""
    text = only_text(kind, guide) if guide else None
    path = model / "tokenizer.json"
    if text is None or not path.is_file():
        return None
    vocabulary = json.loads(path.read_text())["model"]["vocab"]
    return [vocabulary[text]] if isinstance(vocabulary, dict) and text in vocabulary else None


def make() -> ModuleType:
    module: Any = ModuleType("xgrammar")
    module.Grammar = Grammar
    return module  # type: ignore[no-any-return]
