"""The cases of vLLM's tests of its parsers: what a model writes, and what its client must get.

Owns where the cases are in the tests, and which are read: those that are written as data, and the outputs of
the others with what is plainly asserted of them. The tests are read, never run or copied.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from compare_text.literals import Source, Unreadable, returned
from compare_text.vllm_asserts import Expected, asserted

#: A file of tests -> our name of the format.
TOOLS = {
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v31",
    "deepseekv32": "deepseek_v32",
    "deepseekv4": "deepseek_v4",
    "ernie45_moe": "ernie45",
    "gemma4": "gemma4",
    "glm47_moe": "glm47",
    "glm4_moe": "glm45",
    "granite": "granite",
    "granite4": "granite4",
    "hermes": "hermes",
    "hunyuan_a13b": "hunyuan_a13b",
    "internlm2": "internlm",
    "jamba": "jamba",
    "kimi_k2": "kimi_k2",
    "lfm2": "lfm2",
    "llama3_json": "llama3_json",
    "llama4_pythonic": "llama4_pythonic",
    "minimax_m2": "minimax_m2",
    "olmo3": "olmo3",
    "phi4mini": "phi4_mini_json",
    "pythonic": "pythonic",
    "qwen3coder": "qwen3_coder",
    "xlam": "xlam",
}
REASONING = {
    "deepseek_r1": "deepseek_r1",
    "ernie45": "ernie45",
    "gemma4": "gemma4",
    "glm45": "glm45",
    "granite": "granite",
    "hunyuan_a13b": "hunyuan_a13b",
    "olmo3": "olmo3",
    "qwen3": "qwen3",
}
_QWEN_CALL = re.compile(r"<function=(\w+)>")


@dataclass(frozen=True)
class Case:
    """One output of a model, and what a client must get. `None`: the test says nothing about it."""

    name: str
    parser: str
    output: str
    is_streamed: tuple[bool, ...] = (False, True)
    calls: list[tuple[str, Any]] | None = None
    names: list[str] | None = None
    count: int | None = None
    reasoning: str | None = None
    content: str | None = None
    tools: list[Any] = field(default_factory=list)
    asserted: Expected = field(default_factory=Expected)
    is_reasoning: bool = False


def read(files: Mapping[str, bytes]) -> tuple[list[Case], int]:
    """The cases of the tests among `files`, by path, and how many are not read."""
    cases: list[Case] = []
    unread = 0
    for path, content in sorted(files.items()):
        name = PurePosixPath(path).name
        if (tools := re.fullmatch(r"test_(\w+)_tool_parser\.py", name)) and tools[1] in TOOLS:
            found = _tool_cases(Source(content.decode()), tools[1])
        elif reasoning := re.fullmatch(r"test_(\w+)_reasoning_parser\.py", name):
            found = _reasoning_cases(Source(content.decode()), reasoning[1])
        else:
            continue
        for case in found:
            if isinstance(case, Unreadable):
                unread += 1
            else:
                cases.append(case)
    return cases, unread


def _tool_cases(source: Source, file: str) -> Iterator[Case | Unreadable]:
    parser = TOOLS[file]
    tools = _sample_tools(source)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ToolParserTestConfig":
            try:
                yield from _common_cases(source.value(node), file, parser)
            except Unreadable as error:
                yield error
        if not isinstance(node, ast.FunctionDef):
            continue
        for row in _rows(source, node):
            if isinstance(row, Unreadable):
                yield row
            elif isinstance(row.get("model_output"), str):
                yield _parametrized(row, f"{file}: {node.name}: {row['model_output'][:60]!r}", parser, tools)
        outputs = list(_outputs(source, node))
        for name, output in outputs:
            # Of several outputs, an assertion may be about any.
            expected = asserted(source, node, {name: output}) if len(outputs) == 1 else Expected()
            yield Case(
                f"{file}: {node.name}",
                parser,
                output,
                count=expected.count,
                content=expected.content,
                tools=_own_tools(source, node) or tools,
                asserted=expected,
            )


def _common_cases(config: dict[str, Any], file: str, parser: str) -> Iterator[Case]:
    """What vLLM's `ToolParserTests` asks of every parser."""

    def case(kind: str, **expected: Any) -> Case:
        return Case(f"{file}: {kind}", parser, config[f"{kind}_output"], **expected)

    text = config["no_tool_calls_output"]
    yield case("no_tool_calls", calls=[], content=text)
    single = config.get("single_tool_call_expected_args", {"city": "Tokyo"})
    name = config.get("single_tool_call_expected_name", "get_weather")
    content = config.get("single_tool_call_expected_content")
    yield case("single_tool_call", calls=[(name, single)], content=content)
    names = config.get("parallel_tool_calls_names", ["get_weather", "get_time"])
    yield case("parallel_tool_calls", names=names)
    for kind in ("various_data_types", "empty_arguments", "surrounding_text", "escaped_strings"):
        yield case(kind, count=1)
    for number, output in enumerate(config["malformed_input_outputs"]):
        yield Case(f"{file}: malformed_input {number}", parser, output)


def _parametrized(row: dict[str, Any], name: str, parser: str, tools: list[Any]) -> Case:
    calls = None
    if "expected_tool_calls" in row:
        functions = [one.get("function", one) for one in row["expected_tool_calls"]]
        calls = [(one["name"], json.loads(one["arguments"])) for one in functions]
    elif "expected_names" in row:
        calls = list(zip(row["expected_names"], row["expected_args_list"], strict=True))
    streamed = (row["streaming"],) if "streaming" in row else (False, True)
    # What is reasoning here is content in vLLM's tests of calls.
    content = None if "<think>" in row["model_output"] else row.get("expected_content")
    return Case(name, parser, row["model_output"], streamed, calls, content=content, tools=tools)


def _reasoning_cases(source: Source, file: str) -> Iterator[Case | Unreadable]:
    try:
        parser = REASONING[source.name("parser_name")]
    except (Unreadable, KeyError):
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for row in _rows(source, node):
            if isinstance(row, Unreadable):
                yield row
            elif isinstance(row.get("param_dict"), dict) and "output" in row["param_dict"]:
                expected = row["param_dict"]
                content = expected["content"] or ""
                call = _QWEN_CALL.search(content)
                yield Case(
                    f"{file}, reasoning: {node.name}: {expected['output'][:60]!r}",
                    parser,
                    expected["output"],
                    (row["streaming"],) if "streaming" in row else (False, True),
                    # vLLM's parser of reasoning leaves the call in the content for that of calls.
                    names=[call[1]] if call else None,
                    reasoning=expected["reasoning"] or "",
                    content=None if call else content,
                    is_reasoning=True,
                )


def _rows(source: Source, function: ast.FunctionDef) -> Iterator[dict[str, Any] | Unreadable]:
    """The values of each run of a test, by the name of its argument."""
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.parametrize":
            continue
        given = {one.arg: one.value for one in decorator.keywords}
        given.update(zip(("argnames", "argvalues"), decorator.args, strict=False))
        try:
            names = source.value(given["argnames"])
            names = re.split(r",\s*", names) if isinstance(names, str) else list(names)
            for values in source.value(given["argvalues"]) if len(names) > 1 else ():
                yield dict(zip(names, values, strict=True))
        except Unreadable as error:
            yield error


def _outputs(source: Source, function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """The outputs that a test has in its own body, with their names."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])) in (
            "model_output",
            "text",
        ):
            try:
                value = source.value(node.value)
            except Unreadable:
                continue
            if isinstance(value, str) and value:
                yield name, value


def _own_tools(source: Source, function: ast.FunctionDef) -> list[Any]:
    """The tools that a test makes for itself."""
    tools = []
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ChatCompletionToolsParam":
            try:
                tools.append({"type": "function", "function": source.value(node)["function"]})
            except (Unreadable, KeyError):
                continue
    return tools


def _sample_tools(source: Source) -> list[Any]:
    """The tools of the tests' requests, which say what type a parameter has that a model writes as text."""
    for name in ("sample_tools", "_tools"):
        if name in source.functions:
            try:
                tools: list[Any] = source.value(returned(source.functions[name]))
            except Unreadable:
                continue
            return [{"type": "function", "function": one["function"]} for one in tools]
    return []
