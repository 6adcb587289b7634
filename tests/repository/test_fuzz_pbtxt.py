"""`config.pbtxt` from untrusted repositories: whatever the text, it parses or is a `PbtxtError`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.triton.repository.pbtxt import PbtxtError, parse, quote

#: What `fuzz/pbtxt.py` starts from and adds to.
CORPUS = sorted((Path(__file__).parents[2] / "fuzz/corpus/pbtxt").iterdir())
#: Cuts of an entry that are tried as well.
CUTS = 64
#: What a file is made of, and what comes close to it.
PIECES = [
    *("name", ":", "{", "}", "[", "]", ",", ";", '"', "'", "\\", "\n", " ", "#", "-", ".", "<", ">"),
    *(
        '"a"',
        "'b'",
        '"\\x41\\n\\377\\u00e9"',
        "1",
        "-2",
        "3.5e9",
        "0x1F",
        "1e999",
        "nan",
        "TYPE_INT32",
        "true",
    ),
    *("input {", "parameters: {", 'key: "k"', "value: { string_value: 'v' }", "dims: [ -1, 2 ]", "\0", "é"),
]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map(" ".join) | st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(PbtxtError):
        parse(text)


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_every_entry_of_the_corpus_parses_or_is_refused(entry: Path) -> None:
    text = entry.read_bytes().decode("utf-8", "replace")
    for cut in range(CUTS + 1):
        part = text[: len(text) * cut // CUTS]
        with contextlib.suppress(PbtxtError):
            parse(part)
        assert parse(f"a: {quote(part)}") == {"a": [part]}


@pytest.mark.parametrize("text", ["a {" * 100_000, "a: [" * 100_000, '"' * 100_001])
def test_a_hostile_file_is_refused(text: str) -> None:
    with pytest.raises(PbtxtError):
        parse(text)
