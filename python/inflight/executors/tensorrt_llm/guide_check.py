"""Whether xgrammar takes a guide, asked before an engine sees it: an engine compiles in its iteration, and
fails every request that runs where one guide does not compile.

Owns the thread on which guides are compiled, the memory of verdicts and how long one may take. The package
`xgrammar` comes with TensorRT-LLM; where it cannot be imported no guide is sent.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any

LOG = logging.getLogger("inflight.tensorrt_llm")

#: How long a guide may wait and compile. An engine answers nobody while it compiles one.
PATIENCE_S = 5.0
#: Guides that wait for their turn.
MAX_WAITING = 64
#: Verdicts that are kept. Applications send the same few guides again and again.
_MAX_VERDICTS = 1024
#: Guides above this size are not kept, so that the memory stays bounded; they are compiled again.
_MAX_KEPT_BYTES = 64 << 10

#: An error may repeat the whole guide.
_MAX_TEXT = 300

#: Guide type -> the constructor of `xgrammar.Grammar`. `json` is xgrammar's own grammar.
_CONSTRUCTORS = {
    "json_schema": "from_json_schema",
    "regex": "from_regex",
    "ebnf_grammar": "from_ebnf",
    "structural_tag": "from_structural_tag",
}
#: The time and the place in xgrammar's own source that its errors begin with.
_PLACE = re.compile(r"^(\[[\d:]+\] )?\S+\.cc:\d+: ")
#: The least structural tag in the later form.
_LATER_FORM = '{"type": "structural_tag", "format": {"type": "any_text"}}'


def find_grammar() -> Any:
    """`xgrammar.Grammar`; None where the package is missing or broken."""
    try:
        return import_module("xgrammar").Grammar
    except Exception as error:
        LOG.warning("the package `xgrammar` cannot be imported: %r", error)
        return None


def takes_formats(grammar: Any) -> bool:
    """Whether this xgrammar reads structural tags in the later form; earlier ones read the older only."""
    try:
        grammar.from_structural_tag(_LATER_FORM)
    except Exception:
        return False
    return True


class GuideCheck:
    """Compiles guides with one `xgrammar.Grammar`, one after another on a separate thread."""

    def __init__(self, grammar: Any) -> None:
        self._grammar = grammar
        self._thread = ThreadPoolExecutor(1, "tensorrt-llm-guides")
        self._lock = threading.Lock()
        self._waiting = 0
        #: (type, guide) -> what is wrong with it; None: nothing.
        self._verdicts: OrderedDict[tuple[str, str], str | None] = OrderedDict()

    def is_known_good(self, kind: str, guide: str) -> bool:
        """Whether the guide was found good before: then nobody needs to wait."""
        if kind not in _CONSTRUCTORS:
            return True
        with self._lock:
            return self._verdicts.get((kind, guide), "unknown") is None

    def check(self, kind: str, guide: str, then: Callable[[str | None], None]) -> bool:
        """Calls `then` on the thread with what is wrong with the guide, None for nothing. False: too many
        wait, and nothing was done."""
        with self._lock:
            if self._waiting >= MAX_WAITING:
                return False
            self._waiting += 1
        asked = self._thread.submit(self._compile, kind, guide)
        asked.add_done_callback(lambda done: self._finish(done, then))
        return True

    def _finish(self, done: Future[str | None], then: Callable[[str | None], None]) -> None:
        with self._lock:
            self._waiting -= 1
        if not done.cancelled():
            then(done.result())

    def _compile(self, kind: str, guide: str) -> str | None:
        key = kind, guide
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
        wrong = None
        try:
            getattr(self._grammar, _CONSTRUCTORS[kind])(guide)
        except Exception as error:
            lines = str(error).strip().splitlines()
            # Without the place in xgrammar's own source.
            wrong = _PLACE.sub("", lines[0]).strip()[:_MAX_TEXT] if lines else type(error).__name__
        if len(guide) <= _MAX_KEPT_BYTES:
            with self._lock:
                self._verdicts[key] = wrong
                if len(self._verdicts) > _MAX_VERDICTS:
                    self._verdicts.popitem(last=False)
        return wrong

    def shutdown(self) -> None:
        """Ends the thread once what it compiles is done; what waits is forgotten."""
        self._thread.shutdown(wait=False, cancel_futures=True)
