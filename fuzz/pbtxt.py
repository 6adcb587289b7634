"""Coverage-guided fuzzing of `config.pbtxt`, whose parser is Python: `make fuzz TARGET=pbtxt`.

Needs `pip install atheris`. The corpus is replayed by `tests/repository/test_fuzz_pbtxt.py`, which also tries
texts made from a grammar.
"""

import contextlib
import sys

import atheris

with atheris.instrument_imports():
    from inflight.triton.repository.pbtxt import PbtxtError, parse, quote


def one_input(data: bytes) -> None:
    """Any text parses or is refused, and what is quoted reads back."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(PbtxtError):
        parse(text)
    assert parse(f"a: {quote(text)}") == {"a": [text]}


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
