"""`inflight client`: asks a worker, a gateway or Triton through KServe, as NVIDIA's client scripts do. Owns
the options; requests and answers are `inflight.client`'s, how they are shown is `client_output`'s.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import option
from inflight.cli.options import Command, Finite, connection_options, together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from inflight.client.kserve import Array, Connection, Input

#: Options of a request that `inflight.client.generation` turns into tensors.
SAMPLING: dict[str, tuple[Any, str]] = {
    "beam_width": (click.IntRange(1), "Beams; more than 1 is beam search"),
    "num_return_sequences": (click.IntRange(1), "Sequences for each prompt"),
    "temperature": (Finite(0), "Randomness"),
    "top_k": (click.IntRange(0), "Only the most probable tokens"),
    "top_p": (Finite(0, 1), "Only the most probable tokens that together have this probability"),
    "min_tokens": (click.IntRange(0), "Fewest tokens before the end"),
    "length_penalty": (float, "Length penalty of beam search"),
    "repetition_penalty": (float, "Repetition penalty: for tokens that appeared before"),
    "presence_penalty": (float, "Presence penalty: for tokens that appeared before, once"),
    "frequency_penalty": (float, "Frequency penalty: for tokens that appeared before, each time"),
    "seed": (click.IntRange(0), "Random seed"),
    "end_id": (int, "The token that ends a sequence; -1 for none"),
    "pad_id": (int, "Padding token"),
    "lora_task_id": (click.IntRange(0), "The adapter"),
}
#: What NVIDIA's scripts call some of them.
NVIDIAS = {"beam_width": ("-b",), "num_return_sequences": ("-n",), "seed": ("--random-seed",)}


_connection_options = together(
    connection_options,
    option(
        "--timeout-s",
        type=Finite(0, min_open=True),
        default=300.0,
        show_default=True,
        help="Seconds to wait for each response",
    ),
    option("--json", "as_json", is_flag=True, help="Print JSON"),
)


class _Client(click.Group):
    """Its options are its commands': those in front of a command are parsed as if they were behind it, where
    they mean the same."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        # Without the command's name. With `--` in front of it, what follows are not options.
        ctx.obj = [one for one in given[: max(0, len(given) - len(rest) - 1)] if one != "--"]
        return rest

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, [*ctx.obj, *rest]


@click.group(cls=_Client)
@_connection_options
def client(**_: object) -> None:
    """Ask a worker, a gateway or Triton through KServe's protocol.

    The options may also follow the command, and win there.
    """


def _request_options(command: Command) -> Command:
    sampling = [
        option("--" + name.replace("_", "-"), *NVIDIAS.get(name, ()), name, type=kind, help=text)
        for name, (kind, text) in SAMPLING.items()
    ]
    decorators = (
        option(
            "-o",
            "--max-tokens",
            "--request-output-len",
            "--output-len",
            "max_tokens",
            type=click.IntRange(1),
            default=16,
            show_default=True,
            help="Tokens to generate",
        ),
        option("-S", "--streaming", is_flag=True, help="Print tokens as they come"),
        option("--request-id", metavar="ID", help="Id of the request  [default: a random one]"),
        option(
            "--stop-after-ms", type=click.IntRange(0), help="Milliseconds after which to stop the request"
        ),
        option(
            "--stop-via-request-cancel",
            "cancel",
            is_flag=True,
            help="Stop by closing the connection, not by a request with `stop`; over HTTP, always",
        ),
        *sampling,
        option(
            "--stop-word",
            "stop_words",
            multiple=True,
            metavar="TEXT",
            help="Text that ends the answer; repeatable",
        ),
        option(
            "--bad-word",
            "bad_words",
            multiple=True,
            metavar="TEXT",
            help="Text that is never generated; repeatable",
        ),
        option(
            "--lora-path",
            metavar="DIRECTORY",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Send the adapter of this directory: `model.lora_weights.npy` and `model.lora_config.npy`",
        ),
        option("--log-probs", "--return-log-probs", is_flag=True, help="Ask for log probabilities"),
        option(
            "--context-logits",
            "--return-context-logits",
            is_flag=True,
            help="Ask for the logits of the prompt",
        ),
        option(
            "--generation-logits",
            "--return-generation-logits",
            is_flag=True,
            help="Ask for the logits of the answer",
        ),
        option("--include-input", is_flag=True, help="Begin each answer with its prompt"),
        option(
            "--input",
            "others",
            multiple=True,
            metavar="NAME=VALUE",
            help="Any other input of the model; the value is JSON, or text",
        ),
        option(
            "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="Parameter of the request"
        ),
        option(
            "--save",
            metavar="DIRECTORY",
            type=click.Path(file_okay=False, path_type=Path),
            help="Write the other outputs, such as logits, there as `.npy`",
        ),
    )
    return together(*decorators)(command)


@client.command()
@click.argument("ids", nargs=-1)
@option(
    "-f",
    "--input-tokens-csv",
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompts as ids with commas between, one a line; several lines are a batch",
)
@option("-p", "--text", "texts", multiple=True, metavar="TEXT", help="A prompt to tokenize; repeatable")
@option(
    "--tokenizer",
    "--tokenizer-dir",
    "tokenizer",
    metavar="DIRECTORY",
    help="Tokenize with its `tokenizer.json`  [default: the server's models for text]",
)
@option("--model", "--model-name", default="tensorrt_llm", show_default=True, help="Name of the core model")
@_request_options
@_connection_options
@option("--draft-ids", metavar="IDS", help="Guessed tokens for the model to check")
def tokens(
    ids: tuple[str, ...],
    file: Path | None,
    texts: tuple[str, ...],
    tokenizer: str | None,
    model: str,
    draft_ids: str | None,
    **options: Any,
) -> None:
    """Send token ids to the core model and print the ids that it generates.

    IDS are comma-separated lists, one for each prompt of a batch. With `--text` or `--tokenizer`, the text of
    the answer is printed too.
    """
    from inflight.client.text import LocalText, ServerText
    from inflight.errors import UserMistake

    rows = [_ids(one) for one in ids]
    if file is not None:
        lines = file.read_text(encoding="utf-8").splitlines()
        rows += [_ids(line) for line in lines if line.strip()]
    if not rows and not texts:
        raise UserMistake("there is no prompt", "pass ids like `1,2,3`, `--file FILE` or `--text TEXT`")
    with _Opened(options) as opened:
        text = LocalText(tokenizer) if tokenizer else ServerText(opened.connection)
        rows += text.encode(texts)
        words = {
            name: [text.encode_words(options[option])] * len(rows)
            for name, option in (("stop_words_list", "stop_words"), ("bad_words_list", "bad_words"))
            if options[option]
        }
        from inflight.client.generation import prompts, word_lists

        input_ids, lengths = prompts(rows)
        arrays = {"input_ids": input_ids, "input_lengths": lengths}
        arrays |= {name: word_lists(lists) for name, lists in words.items()}
        given = {} if draft_ids is None else {"draft_input_ids": _ids(draft_ids)}
        opened.ask(
            model, arrays, given, len(rows), text=text if texts or tokenizer else None, stop_model=model
        )


@client.command()
@click.argument("prompts", nargs=-1, metavar="PROMPT...")
@option("-p", "--prompt", "more", multiple=True, metavar="TEXT", help="A prompt; several are a batch")
@option(
    "--model",
    "--model-name",
    default="ensemble",
    show_default=True,
    help="The text model: ensemble or tensorrt_llm_bls",
)
@option("--core-model", default="tensorrt_llm", show_default=True, help="The model that takes `stop`")
@option(
    "--overwrite-output-text",
    "accumulated",
    is_flag=True,
    help="Each response has all text so far (`accumulate_tokens`)",
)
@option(
    "--embedding-bias", "biases", multiple=True, metavar="WORD=WEIGHT", help="Add to the logits of a word"
)
@option(
    "--num-draft-tokens", type=click.IntRange(1), help="Tokens that the draft model proposes in each round"
)
@option("--use-draft-logits", is_flag=True, help="Accept guesses by their probabilities")
@_request_options
@_connection_options
def text(
    prompts: tuple[str, ...],
    more: tuple[str, ...],
    model: str,
    core_model: str,
    accumulated: bool,
    biases: tuple[str, ...],
    num_draft_tokens: int | None,
    use_draft_logits: bool,
    **options: Any,
) -> None:
    """Send text to a model that answers with text."""
    import numpy as np

    from inflight.errors import UserMistake

    asked = [*prompts, *more]
    if not asked:
        raise UserMistake("there is no prompt", "pass the text as PROMPT")
    given: dict[str, Any] = {
        "bad_words": list(options["bad_words"]) or None,
        "stop_words": list(options["stop_words"]) or None,
        "num_draft_tokens": num_draft_tokens,
        "use_draft_logits": use_draft_logits or None,
    }
    if biases:
        pairs = [_pair("embedding-bias", bias) for bias in biases]
        given["embedding_bias_words"] = [word for word, _ in pairs]
        given["embedding_bias_weights"] = [_number(weight) for _, weight in pairs]
    with _Opened(options) as opened:
        arrays = {"text_input": np.array([[one.encode()] for one in asked], np.object_)}
        opened.ask(model, arrays, given, len(asked), accumulated=accumulated, stop_model=core_model)


@client.command()
@option("--model", metavar="NAME", help="Ask only for this model")
@option("--wait-s", type=Finite(0), default=0.0, help="Seconds to keep asking until it is ready")
@_connection_options
@click.pass_context
def health(
    ctx: click.Context,
    model: str | None,
    wait_s: float,
    url: str | None,
    protocol: str,
    api_key: str | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Say whether a server is live and ready, and which models it has; exit status 1 if it is not ready."""
    import time

    from inflight.cli.client_output import show_health
    from inflight.client.connect import connect

    connection = connect(protocol, url, api_key, timeout_s)
    deadline = time.monotonic() + wait_s
    try:
        while True:
            found = connection.health()
            ready = found.ready and (model is None or connection.is_model_ready(model))
            if ready or time.monotonic() >= deadline:
                break
            time.sleep(0.2)
    finally:
        connection.close()
    show_health(found, model, ready, as_json=as_json)
    ctx.exit(0 if ready else 1)


class _Opened:
    """A connection, and the options of one request."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self.connection: Connection

    def __enter__(self) -> _Opened:
        from inflight.client.connect import connect

        options = self._options
        self.connection = connect(
            options["protocol"], options["url"], options["api_key"], options["timeout_s"]
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(
        self,
        model: str,
        arrays: dict[str, Array],
        given: Mapping[str, Any],
        rows: int,
        *,
        stop_model: str,
        text: Any = None,
        accumulated: bool = False,
    ) -> None:
        """Sends the request and prints what comes."""
        from dataclasses import replace

        from inflight.cli.client_output import Shown
        from inflight.client.generation import Answer, request, tensors
        from inflight.client.kserve import Stop

        options = self._options
        streaming = options["streaming"]
        declared = self.connection.inputs(model)
        wanted = {name: options[name] for name in SAMPLING}
        wanted |= {
            "max_tokens": options["max_tokens"],
            "streaming": streaming or None,
            "exclude_input_in_output": not options["include_input"],
            "return_log_probs": options["log_probs"] or None,
            "return_context_logits": options["context_logits"] or None,
            "return_generation_logits": options["generation_logits"] or None,
        }
        arrays |= tensors(declared, {**wanted, **given, **_others(options["others"])}, rows, model)
        if options["lora_path"] is not None:
            arrays |= _lora(options["lora_path"], declared, rows)
        made = request(
            model, declared, arrays, options["request_id"] or uuid.uuid4().hex, streaming=streaming
        )
        made = replace(made, parameters=_others(options["parameters"]))
        stop = None
        if options["stop_after_ms"] is not None:
            stop = Stop(options["stop_after_ms"] / 1000, options["cancel"], stop_model)
        shown = Shown(made, as_json=options["as_json"], text=text)
        answer = Answer()
        for response in self.connection.ask(made, stop):
            shown.arrived(answer.add(response, streaming=streaming, accumulated=accumulated))
        shown.end(answer, options["save"])


def _ids(text: str) -> list[int]:
    from inflight.errors import UserMistake

    try:
        found = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found or any(not -(2**31) <= one < 2**31 for one in found):
        raise UserMistake(f"`{text}` is not a list of token ids", "write ids with commas between: `1,2,3`")
    return found


def _pair(option: str, text: str) -> tuple[str, str]:
    from inflight.errors import UserMistake

    name, equals, value = text.rpartition("=") if option == "embedding-bias" else text.partition("=")
    if not equals or not name:
        raise UserMistake(f"`--{option} {text}` has no `=`", "write NAME=VALUE")
    return name, value


def _number(text: str) -> float:
    from inflight.errors import UserMistake

    try:
        return float(text)
    except ValueError:
        raise UserMistake(f"`{text}` is not a number", "write WORD=WEIGHT, such as ` the=-5`") from None


def _others(pairs: Sequence[str]) -> dict[str, Any]:
    found = {}
    for name, value in (_pair("input", pair) for pair in pairs):
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _lora(directory: Path, declared: Mapping[str, Input], rows: int) -> dict[str, Array]:
    """The adapter's tensors for every row, in the model's datatypes."""
    import numpy as np

    from inflight.client.kserve import DTYPES
    from inflight.errors import UserMistake

    found = {}
    for name in ("lora_weights", "lora_config"):
        path = directory / f"model.{name}.npy"
        if name not in declared:
            raise UserMistake(f"the model has no input `{name}`", "leave out `--lora-path`")
        try:
            array = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UserMistake(
                f"`{path}` cannot be read: {error}", "pass what TensorRT-LLM's `hf_lora_convert.py` wrote"
            ) from error
        array = array.reshape(array.shape[-2:]).astype(DTYPES[declared[name].datatype])
        found[name] = np.repeat(array[None], rows, axis=0)
    return found
