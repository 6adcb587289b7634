"""Where people type their turns: pasted lines stay together, earlier turns come back with the arrow keys, and
Ctrl-C never costs what was typed. Editing is `prompt_toolkit`'s.
"""

from __future__ import annotations

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

QUESTION = HTML("\n<ansicyan><b>you</b></ansicyan> ")
#: Instead, after a first Ctrl-C.
ONCE_MORE = HTML("\n<i>Ctrl-C again ends the chat</i>\n<ansicyan><b>you</b></ansicyan> ")


class Prompt:
    """Reads one turn after another from a terminal."""

    def __init__(self) -> None:
        self._was_interrupted = False
        keys = KeyBindings()
        keys.add("enter")(self._send)
        keys.add("escape", "enter")(self._break_line)
        keys.add("c-c")(self._interrupt)
        self._session: PromptSession[str] = PromptSession(
            multiline=True,  # for pasted lines; Enter still sends
            key_bindings=keys,
            prompt_continuation="... ",
            reserve_space_for_menu=0,
        )
        self._session.default_buffer.on_text_changed += lambda _: self._forgive()

    def ask(self, text: str = "") -> str:
        """The next turn; `text` is there to begin with. Ends with `EOFError` or `KeyboardInterrupt`."""
        self._was_interrupted = False
        return self._session.prompt(self._question, default=text)

    def _question(self) -> HTML:
        return ONCE_MORE if self._was_interrupted else QUESTION

    def _forgive(self) -> None:
        self._was_interrupted = False

    def _send(self, event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    def _break_line(self, event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    def _interrupt(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text and not self._was_interrupted:
            self._was_interrupted = True
            return
        event.app.exit(exception=KeyboardInterrupt, style="class:aborting")
