"""Breaks text that arrives in pieces into lines between words. Pure: pieces in, what to print out.

Owns where a line breaks and which characters reach a terminal. A word is printed once it is complete, since
only then is it known on which line it fits.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len

from inflight.cli.terminal import printable

TAB = "    "


class WordWrap:
    """One text. `width` is asked at each break, because windows change; `column` is where the text begins."""

    def __init__(self, width: Callable[[], int], column: int = 0) -> None:
        self._width = width
        self._column = column
        self._spaces = ""
        self._word = ""

    def feed(self, piece: str) -> str:
        """What can be printed now that `piece` has come."""
        out = []
        for character in piece.replace("\t", TAB):
            if character == "\n":
                out.append(self._end_of_word() + "\n")
                self._column, self._spaces = 0, ""
            elif character == " ":
                out.append(self._end_of_word())
                self._spaces += character
            else:
                # Languages with wide characters have no spaces: a line may break before and after each.
                wide = cell_len(character) > 1
                if wide or cell_len(self._word) >= self._width():
                    out.append(self._end_of_word())
                self._word += character
                if wide:
                    out.append(self._end_of_word())
        return "".join(out)

    def finish(self) -> str:
        """The rest."""
        return self._end_of_word()

    def _end_of_word(self) -> str:
        if not self._word:
            return ""
        word, spaces = printable(self._word), self._spaces
        self._word = self._spaces = ""
        if self._column and self._column + len(spaces) + cell_len(word) > self._width():
            self._column = cell_len(word)
            return "\n" + word
        self._column += len(spaces) + cell_len(word)
        return spaces + word
