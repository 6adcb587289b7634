"""Every `inflight` command line of the pages: its options exist, and have the values that they need.

A line in a block of code, or in the table of MIGRATION.md, is a whole command. In prose, `inflight worker
--host` only names an option. Lines that are cheap are run as well; the scripts are `test_examples.py`'s.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest

from inflight import _native
from inflight.cli.app import inflight
from inflight.cli.bench_requests import requests
from support.fronted import LLMAPI
from support.processes import INFLIGHT
from support.servers import Server
from test_documentation import CURRENT_PAGES, ROOT, tracked

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
#: What may stand in front of the program: variables, and what starts several ranks.
BEGIN = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=\S+ +)*(?:(?:mpirun|srun|podman run|docker run)\b[^;|]*? )?inflight(?= |$)"
)
#: A word that the reader replaces, or that a shell does.
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_:/=-]*|.*(?:…|\.\.\.|\$|<\w+>).*")
END = {"|", "||", "&", "&&", ";", ">", ">>", "<"}
#: Written by clap and click themselves, and held by their own tests.
GENERATED = {"docs/reference/commands.md", "docs/reference/build-options.md"}
PAGES = [page for page in CURRENT_PAGES if str(page.relative_to(ROOT)) not in GENERATED]
FILES = tracked("deploy/*.yaml", "deploy/*.sh", "examples/*.sh")


@dataclass(frozen=True)
class Line:
    """A command line, and where it is."""

    where: str
    text: str
    is_whole: bool


def lines_of(block: str) -> Iterator[tuple[int, str]]:
    """The lines of a shell's block with their numbers; those that go on behind a backslash are one."""
    begin, text = 0, ""
    for number, line in enumerate(block.splitlines()):
        begin, text = (number, line) if not text else (begin, f"{text} {line.strip()}")
        if text.endswith("\\"):
            text = text[:-1].rstrip()
            continue
        yield begin, text
        text = ""


def found() -> Iterator[Line]:
    for path in [*PAGES, *FILES]:
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        blocks = list(BLOCK.finditer(text)) if path.suffix == ".md" else []
        for block in blocks:
            if block[1] not in ("", "bash", "sh", "shell", "console"):
                continue
            first = text.count("\n", 0, block.start()) + 2
            for number, line in lines_of(block[2]):
                if BEGIN.match(line.strip()):
                    yield Line(f"{name}:{first + number}", line.strip(), is_whole=True)
        if path.suffix == ".sh":
            for number, line in lines_of(text):
                if BEGIN.match(line.strip()):
                    yield Line(f"{name}:{number + 1}", line.strip(), is_whole=True)
        if path.suffix != ".md":
            continue
        prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
        for number, line in enumerate(prose.splitlines()):
            for span in SPAN.findall(line.replace("\\|", "|")):
                if BEGIN.match(span) and not span.startswith("inflight worker: "):
                    is_row = name == "docs/MIGRATION.md" and "proved" not in line and "](../tests/" in line
                    yield Line(f"{name}:{number + 1}", span, is_whole=is_row)


LINES = list(dict.fromkeys(found()))


def words_of(text: str) -> list[list[str]]:
    """The arguments of each `inflight` of the line."""
    # Substitutions are one word, optional parts count, and what stands in a second column is a comment.
    text = re.sub(r"\$\([^)]*\)", "$X", text)
    text = re.sub(
        r"(?<=\s)\[([^\[\]'\"|]+)(?:\|[^\[\]'\"]+)?\](?=\s|$)", r"\1", text.replace("[options]", "")
    )
    text = re.split(r"(?<=\S) {2,}(?=[^-\s'\"])", text)[0]
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in END:
            commands.append([])
        else:
            commands[-1].append(word)
    return [words[words.index("inflight") + 1 :] for words in commands if "inflight" in words]


def check(words: list[str], *, is_whole: bool) -> None:
    """Raises `click.UsageError` for what the command line would refuse."""
    command: click.Command = inflight
    context = click.Context(command, info_name="inflight", **command.context_settings)
    while isinstance(command, click.Group):
        if not words or words[0].startswith("-"):
            command.make_parser(context).parse_args(list(words))
            return
        name, *words = words
        if PLACEHOLDER.fullmatch(name):
            return
        under = command.get_command(context, name)
        if under is None:
            raise click.UsageError(f"no such command `{name}`")
        command = under
        context = click.Context(under, info_name=name, parent=context, **under.context_settings)
    if command.name == "bench" and words[:1] == ["requests"]:
        command, words = requests, words[1:]
        context = click.Context(command, info_name="requests", parent=context)
    if command.name == "gateway":
        # The names of openai_trtllm, which no list has.
        theirs = {"--triton-endpoint", "-H", "-p", "-t", "-o"}
        known = {f"--{option.flag}" for option in _native.gateway_options()} | theirs | {"--help"}
        check_native(words, known, is_whole=is_whole, operands=0)
    elif command.name == "simulate":
        check_native(words, options_on_page("simulate"), is_whole=is_whole, operands=1)
    elif command.name == "bench":
        if words and not words[0].startswith("-"):
            known = options_on_page(f"bench {words[0]}")
            operands = 2 if words[0] == "replay" else 1
            check_native(words[1:], known, is_whole=is_whole, operands=operands)
    elif is_whole:
        check_values(command, context, words)
    else:
        normal = context.token_normalize_func or str
        options = {
            normal(option)
            for one in command.get_params(context)
            for option in (*one.opts, *one.secondary_opts)
        }
        for word in words:
            if re.match(r"--?[A-Za-z]", word) and normal(word.partition("=")[0]) not in options | {"--help"}:
                raise click.NoSuchOption(word)


def check_values(command: click.Command, context: click.Context, words: list[str]) -> None:
    """The options by name, those with values, and values by their type; paths need not exist."""
    words = [word for word in words if word not in ("…", "...")]
    options, rest, _ = command.make_parser(context).parse_args(list(words))
    if rest:
        raise click.UsageError(f"unexpected arguments `{rest}`")
    for one in command.get_params(context):
        value = options.get(one.name or "")
        given = [it for it in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(it, str)]
        if one.required and not given and one.nargs == 1:
            raise click.MissingParameter(param=one, ctx=context)
        for text in given:
            if not PLACEHOLDER.fullmatch(text) and not isinstance(one.type, (click.Path, click.File)):
                one.type.convert(text, one, context)


@cache
def options_on_page(name: str) -> set[str]:
    """The options of a command of the Rust core, from the page that its help is written to."""
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    found = re.search(rf"^## `?inflight {name}`?\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if found is None:
        raise click.UsageError(f"no such command `{name}`")
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", found[1]))


def check_native(words: list[str], known: set[str], *, is_whole: bool, operands: int) -> None:
    """The same for what the Rust core parses, whose options all have values."""
    rest = iter(words)
    for word in rest:
        if word not in known and not word.startswith("--"):
            operands -= 1
            if is_whole and operands < 0 and not PLACEHOLDER.fullmatch(word):
                raise click.UsageError(f"unexpected argument `{word}`")
            continue
        name, has_value, _ = word.partition("=")
        if name not in known:
            raise click.NoSuchOption(name)
        if is_whole and not has_value and next(rest, "--").startswith("--"):
            raise click.UsageError(f"`{name}` has no value")


def test_the_pages_have_commands() -> None:
    assert sum(line.is_whole for line in LINES) > 90
    assert {line.where.partition(":")[0] for line in LINES} >= {
        "README.md",
        "docs/MIGRATION.md",
        "deploy/compose/README.md",
    }


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.where} {line.text[:60]}")
def test_a_command_is_understood(line: Line) -> None:
    commands = words_of(line.text)
    assert commands, line
    for words in commands:
        try:
            check(words, is_whole=line.is_whole)
        except click.UsageError as error:
            pytest.fail(f"{line.where}: `{line.text}`: {error.format_message()}", pytrace=False)


def whole(page: str, *beginnings: str) -> list[str]:
    """The whole commands of a page that begin so."""
    lines = [line.text for line in LINES if line.is_whole and line.where.startswith(f"{page}:")]
    chosen = [line for line in lines if line.startswith(beginnings)]
    assert len(chosen) >= len(beginnings), page
    return chosen


def run(text: str, folder: Path, **environment: str) -> str:
    """Runs the line in a shell of the folder; returns what it printed."""
    path = f"{INFLIGHT.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("plane", ["compose", "kubernetes", "slurm", "systemd"])
def test_the_page_of_a_plane_renders_a_topology(plane: str, tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text("models: [{}]\n", encoding="utf-8")
    (line,) = whole(f"deploy/{plane}/README.md", "inflight launch topology.yaml --render")
    run(line, tmp_path)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) > 1


def test_the_page_of_repositories_writes_and_checks_one(tmp_path: Path, model_directory: Path) -> None:
    page = "docs/guides/triton-repository.md"
    for line in whole(
        page, "inflight repository create", "inflight repository check", "inflight repository options"
    ):
        # What the reader replaces.
        for word, value in {
            "MODEL_OR_ENGINE_DIR": model_directory,
            "CHECKPOINT": model_directory,
            "TENSORRT_LLM": LLMAPI,
            "REPO": "llmapi",
            "DIR": "repository",
        }.items():
            line = line.replace(word, str(value))
        run(line, tmp_path)
    assert (tmp_path / "repository" / "ensemble" / "config.pbtxt").exists()
    assert (tmp_path / "llmapi" / "tensorrt_llm" / "1" / "model.yaml").exists()


def test_the_page_of_builds_shows_the_plan_of_a_checkpoint(tmp_path: Path, model_directory: Path) -> None:
    for line in whole("docs/guides/build.md", "inflight build MODEL_DIR", "inflight inspect DIR"):
        (words,) = words_of(line)
        made = [
            "inflight",
            *(str(model_directory) if word in ("MODEL_DIR", "DIR") else word for word in words),
        ]
        if "build" in made:
            made[made.index("--output") + 1] = "built"
            made.append("--dry-run")
        run(shlex.join(made), tmp_path)


def test_the_page_of_the_client_asks_a_server(server: Server, tmp_path: Path) -> None:
    for line in whole(
        "docs/guides/client.md", "inflight client health", "inflight client tokens", "inflight client text"
    ):
        assert run(line, tmp_path, INFLIGHT_URL=server.grpc)


@pytest.mark.parametrize(
    "text",
    [
        "inflight serv",
        "inflight serve --no-such-option",
        "inflight worker MODEL --grpc-port many",
        "inflight worker MODEL --executor vllm",
        "inflight worker one two",
        "inflight repository create",
        "inflight gateway --worker",
        "inflight gateway --no-such-option 1",
    ],
)
def test_what_the_command_line_refuses_is_refused(text: str) -> None:
    (words,) = words_of(text)
    with pytest.raises(click.UsageError):
        check(words, is_whole=True)
