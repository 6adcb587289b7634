"""Long texts in front of a question: what agents send as instructions, and documents that users paste.

The texts say nothing about the question: they are there so that the model learns to look past them. One half
of them is made here, of headings, rules, code, JSON and invented words; the other half is cut out of the
repository's own pages, but for those under `deploy/`, which measurements use.
"""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
import json
from functools import cache
from pathlib import Path

from .author import Author, capitalized
from .plain import plain_text
from .topics import pseudo_word
from .words import NAMES, TOPICS, WORDS

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PAGE_FOLDERS = ("docs", "docs/guides", "docs/reference", "docs/decisions", "examples")

OPENINGS = ("You are {n}, an agent that works in a terminal.", "You are {n}, a careful assistant.",
            "You are a coding agent. You help the user with files and commands.",
            "You are {n}. Follow these instructions exactly.", "# Instructions", "<instructions>",
            "The assistant is {n}. The following rules always apply.")
RULES = ("Always {v} the {a} before you {w} the {b}.", "Never {v} a {a} without its {b}.",
         "If the {a} is missing, {v} the {b} and stop.", "Do not {v} more than {k} {a}s at a time.",
         "Prefer the {a} to the {b} where both are there.", "When the user asks for a {a}, {v} it first.",
         "Use the tool `{t}` to {v} files, and `{u}` to {w} them.", "IMPORTANT: {v} only what was asked for.",
         "Keep the {a} short and the {b} complete.", "After each {a}, check the {b} again.",
         "Paths are absolute, such as `/{t}/{u}.{e}`.", "The limit is {k} lines; longer files are cut.")
VERBS = ("read", "write", "check", "open", "close", "search", "list", "copy", "move", "run", "test", "edit",
         "describe", "plan", "commit", "format")
HEADINGS = ("Rules", "Tone and style", "Files", "Environment", "Examples", "Limits", "Working with {t}",
            "How to {v}", "Before you {v}", "Notes", "Context", "Tools and their use")


@cache
def pages() -> tuple[str, ...]:
    """The repository's pages, in a fixed order."""
    return tuple(page.read_text(encoding="utf-8") for folder in PAGE_FOLDERS
                 for page in sorted((REPOSITORY / folder).glob("*.md")))


def identifier(author: Author) -> str:
    words = [author.pick(WORDS) if author.maybe(0.6) else pseudo_word(author, 2) for _ in range(2)]
    return author.pick(("_", "-", "")).join(words)


def filled(author: Author, frame: str) -> str:
    return frame.format(a=author.pick(WORDS), b=author.pick(TOPICS), v=author.pick(VERBS),
                        w=author.pick(VERBS), t=identifier(author), u=identifier(author),
                        n=capitalized(pseudo_word(author, 2)), k=author.randrange(2, 2000),
                        e=author.pick(("py", "rs", "ts", "md", "json", "toml")))


def rules(author: Author) -> str:
    mark = author.pick(("- ", "* ", "", "1. "))
    return "\n".join(mark + filled(author, author.pick(RULES)) for _ in range(author.randrange(3, 12)))


def schema(author: Author) -> str:
    """A tool's definition as agents write it into their instructions."""
    properties = {identifier(author): {"type": author.pick(("string", "integer", "boolean", "array")),
                                       "description": filled(author, author.pick(RULES))}
                  for _ in range(author.randrange(1, 6))}
    return json.dumps({"name": identifier(author), "description": rules(author),
                       "parameters": {"type": "object", "properties": properties}},
                      indent=author.pick((None, 2)))


def code(author: Author) -> str:
    lines = [f"{identifier(author)} = {author.pick(WORDS)}({author.randrange(100)})"
             if author.maybe(0.7) else f"if {author.pick(WORDS)}: return {pseudo_word(author, 2)!r}"
             for _ in range(author.randrange(2, 10))]
    body = "\n".join("    " + line for line in lines)
    return f"```\ndef {author.pick(VERBS)}_{author.pick(WORDS)}({author.pick(NAMES).lower()}):\n{body}\n```"


def facts(author: Author) -> str:
    """What agents report of their environment."""
    tag = author.pick(("environment", "context", "system-reminder", "info"))
    lines = "\n".join(f"{identifier(author)}: {pseudo_word(author, 3)}/{author.randrange(10_000)}"
                      for _ in range(author.randrange(3, 14)))
    return f"<{tag}>\n{lines}\n</{tag}>"


PARTS = ((rules, 0.3), (schema, 0.2), (code, 0.12), (facts, 0.13), (plain_text, 0.25))


def made(author: Author, length: int) -> str:
    """About `length` characters of invented instructions."""
    parts = [filled(author, author.pick(OPENINGS))]
    while sum(map(len, parts)) < length:
        if author.maybe(0.5):
            parts.append(author.pick(("# ", "## ", "", "### ")) + filled(author, author.pick(HEADINGS)))
        roll = author.random()
        for part, share in PARTS:
            roll -= share
            if roll < 0:
                parts.append(part(author))
                break
    return author.pick(("\n", "\n\n")).join(parts)


def long_text(author: Author, length: int) -> str:
    """About `length` characters that say nothing about the question which follows."""
    if author.maybe(0.5):
        return made(author, length)
    page = author.pick(pages())
    start = author.randrange(max(1, len(page) - length))
    text = page[start:start + length]
    return text if author.maybe(0.5) else filled(author, author.pick(OPENINGS)) + "\n\n" + text
