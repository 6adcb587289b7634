"""Prints text from files and peers to a terminal. Owns which characters are escaped.

A checkpoint is untrusted: an escape sequence in a name of its config could rewrite what was printed before
it, set the window's title or hide the end of a line.
"""

from __future__ import annotations

import unicodedata

import click

#: Marks that turn the direction of the text after them.
TURNING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """One line of text, control characters as `\\x1b` and those that turn its direction as `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def printable_text(text: str) -> str:
    """The same for text with line breaks and tabs."""
    return "".join(one if one in "\n\t" else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    if unicodedata.category(character) != "Cc" and character not in TURNING:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def echo(text: str, *, err: bool = False) -> None:
    """Prints lines, whose ends are our own layout; `err` to standard error."""
    click.echo("\n".join(printable(line) for line in text.split("\n")), err=err)
