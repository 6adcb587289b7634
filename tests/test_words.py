"""What people read is plain English: pages, help, errors and logs have none of the phrases of docs/STYLE.md.

Each phrase here was once common in this repository, and each has a plainer form. The list grows; it has no
exceptions for single files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from support import prose
from test_documentation import ROOT, tracked

#: What not to write -> what to write instead.
PHRASES = {
    # The table of docs/STYLE.md.
    r"(?<!there )is no (?!longer\b|more\b)[a-z`]": "is not a",
    r"means? nothing": "has no effect, is not supported",
    r"has no place\b": "unexpected, cannot contain",
    r"\b(tells?|telling|told)\b": "report, say, specify, distinguish",
    r"\bstands?\b(?!-)": "is, appears, means",
    r"\bbeside\b": "next to, in addition to",
    r"\b(is|are|not) to be (made|used|taken)\b": "will be created, is not usable",
    r"\bbe had\b": "is supported, is available",
    r"\breckon": "assume, count",
    r"code of strangers": "untrusted code",
    r"\b(goes|go|went|gone) on\b": "continue, resume",
    r"\bhad better\b": "should",
    r"'s (to say|affair)\b": "decides, is up to",
    r"\bnot (heard|believed)\b": "missing, not trusted",
    r"\bof theirs\b": "their",
    r"\btaken (for|into|up again)\b": "treated as, added, reconnected",
    r"\bmend(s|ed)?\b": "fix",
    r"is as it was": "nothing was changed",
    r"\blie in one another\b": "is inside",
    r"\bis no build of\b": "was not created by",
    r"\ball it may\b": "its limit",
    # And what reads like it.
    r"(?<!there )\bis none\b(?! of)": "is not a, is invalid",
    r"of (its|their|our|your|one's|his) own\b": "its own, a separate",
    r"\bwho(m)?ever\b": "anyone who",
    r"\b(speaks?|knows?|takes?) no\b": "does not",
    r"\bwith nothing said\b": "without a message",
}
FORBIDDEN = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.IGNORECASE)

#: STYLE.md shows what not to write.
PAGES = [page for page in tracked("*.md") if page.name != "STYLE.md"]
PYTHON = tracked("python/*.py")
#: Help of clap is doc comments.
RUST_HELP = tracked("crates/gateway/src/options.rs", "crates/bench/src/cli.rs")
RUST = [path for path in tracked("crates/*.rs") if "src" in path.parts and "testkit" not in path.parts]


def forbidden(path: Path, texts: Iterable[prose.Text]) -> Iterator[str]:
    """Each forbidden phrase with its place and what to write instead."""
    for text in texts:
        # Names and values may be any words.
        words = re.sub(r"`[^`]*`", "`…`", text.words)
        for found in FORBIDDEN.finditer(words):
            rest = words[found.start() :]
            instead = next(say for phrase, say in PHRASES.items() if re.match(phrase, rest, re.IGNORECASE))
            around = words[max(0, found.start() - 50) : found.end() + 50]
            yield f"{path.relative_to(ROOT)}:{text.line}: `{around}`: write {instead}"


def is_of_tests(path: Path) -> bool:
    return "tests" in path.parts or path.stem == "tests"


def check(found: Iterable[str]) -> None:
    lines = list(found)
    assert not lines, "\n".join(lines)


def test_pages_are_plain_english() -> None:
    check(line for page in PAGES for line in forbidden(page, prose.of_page(page)))


def test_texts_of_python_are_plain_english() -> None:
    check(line for path in PYTHON for line in forbidden(path, prose.of_python(path)))


def test_texts_and_help_of_rust_are_plain_english() -> None:
    sources = [path for path in RUST if not is_of_tests(path)]
    check(line for path in sources for line in forbidden(path, prose.of_rust(path)))
    check(line for path in RUST_HELP for line in forbidden(path, prose.of_rust(path, with_comments=True)))


def test_comments_are_plain_english() -> None:
    paths = [(path, "#") for path in PYTHON]
    paths += [(path, "//") for path in RUST]
    check(
        line
        for path, mark in paths
        for line in forbidden(path, prose.comments(path.read_text(encoding="utf-8"), mark))
    )


def test_texts_are_found_with_their_lines(tmp_path: Path) -> None:
    rust = tmp_path / "a.rs"
    rust.write_text(
        "/// Says \"nothing\".\nfn a<'a>(b: &'a str) -> char {\n"
        '    log("one \\\n         two", r#"th"ree"#, \'"\');\n}\n'
        '#[cfg(test)]\nmod tests {\n    const A: &str = "four";\n}\n'
    )
    assert list(prose.of_rust(rust)) == [prose.Text(3, "one two"), prose.Text(4, 'th"ree')]
    assert prose.Text(1, 'Says "nothing".') in prose.of_rust(rust, with_comments=True)
    python = tmp_path / "a.py"
    python.write_text('a = f"one {b!r} two"\n# three\n# four\n')
    found = [prose.Text(1, "one … two"), prose.Text(2, "three four")]
    assert list(prose.of_python(python, with_comments=True)) == found
    page = tmp_path / "a.md"
    page.write_text("# One\n\nTwo\nthree\n\n```text\nfour\n```\n\n- five\n- six\n")
    assert [text.words for text in prose.of_page(page)] == ["# One", "Two three", "- five", "- six"]


def test_phrases_are_found_and_names_are_not() -> None:
    page = ROOT / "docs" / "a.md"
    for words, count in (
        ("`x` is no number", 1),
        ("there is no number", 0),
        ("is no longer there", 0),
        ("a page of its own, which tells it", 2),
        ("`tells` is a name", 0),
        ("a stand-in", 0),
    ):
        assert len(list(forbidden(page, [prose.Text(1, words)]))) == count, words
