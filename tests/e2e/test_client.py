"""`inflight client` against real servers, over both protocols."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.command import run
from support.metrics import active_requests
from support.processes import wait_until
from support.servers import Server, Start, start_worker, wait_ready
from support.triton import MODEL, inputs, tokens

PROMPT = [40, 41, 42]
IDS = "40,41,42"
PROTOCOLS = ["grpc", "http"]


def to(server: Server, protocol: str) -> list[str]:
    """The options that name a server."""
    return ["-i", protocol, "-u", server.grpc if protocol == "grpc" else server.http]


@pytest.fixture(scope="module")
def expected(server: Server) -> list[int]:
    """What tritonclient gets."""
    with triton.InferenceServerClient(server.grpc) as client:
        return tokens(client.infer(MODEL, inputs(PROMPT, 16, exclude_input_in_output=True)))


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm/client/inflight_batcher_llm_client.py --input-tokens-csv FILE"
    " --request-output-len 16",
    "inflight client tokens --input-tokens-csv FILE --request-output-len 16",
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ids_from_a_file(server: Server, expected: list[int], tmp_path: Path, protocol: str) -> None:
    file = tmp_path / "ids.csv"
    file.write_text(IDS + "\n")
    arguments = ["client", "tokens", "--input-tokens-csv", str(file), "--request-output-len", "16"]
    done = run(*arguments, *to(server, protocol))
    assert done.out == ",".join(map(str, expected)) + "\n"
    assert f"{len(expected)} tokens in" in done.err
    whole = run(*arguments, "--include-input", "--json", *to(server, protocol)).object
    assert whole["sequences"][0]["output_ids"] == PROMPT + expected


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm_client.py --streaming --request-output-len 200",
    "inflight client tokens --streaming --request-output-len 200 IDS",
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ids_stream(server: Server, expected: list[int], protocol: str) -> None:
    done = run("client", "tokens", IDS, "--streaming", *to(server, protocol))
    assert done.out == ",".join(map(str, expected)) + "\n"
    found = run("client", "tokens", IDS, "-S", "--json", *to(server, protocol)).object
    assert found["sequences"][0]["output_ids"] == expected
    assert found["responses"] > 2
    assert found["first_ms"] < found["total_ms"]
    assert found["outputs"].keys() <= {"cum_log_probs"}


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm_client.py --tokenizer-dir DIR --text TEXT",
    "inflight client tokens --tokenizer-dir DIR --text TEXT",
)
def test_text_is_tokenized_here_or_by_the_server(server: Server, model_directory: Path) -> None:
    arguments = ["client", "tokens", "--text", "Once upon a time", "--json", *to(server, "grpc")]
    by_server = run(*arguments).object["sequences"]
    here = run(*arguments, "--tokenizer-dir", str(model_directory)).object["sequences"]
    assert by_server == here
    answer = run("client", "text", "Once upon a time", "--json", *to(server, "grpc")).object
    assert answer["sequences"][0]["text"] == here[0]["text"]
    # The same words end both, as ids and as text.
    word = here[0]["text"].split()[2]
    for option in ("--stop-word", "--bad-word"):
        cut = run(*arguments, option, " " + word).object["sequences"][0]
        assert (
            cut
            == run(*arguments, option, " " + word, "--tokenizer", str(model_directory)).object["sequences"][0]
        )
        assert len(cut["output_ids"]) < len(here[0]["output_ids"]) or option == "--bad-word"
        assert option == "--stop-word" or word not in cut["text"].split()


@pytest.mark.migrates(
    "tensorrtllm_backend",
    'python3 end_to_end_grpc_client.py -o 5 -p \'["Hello", "World"]\' --batch-inputs',
    "inflight client text -o 5 Hello World",
)
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_in_batches(server: Server, model: str) -> None:
    arguments = ["--model", model, "-o", "5", *to(server, "grpc")]
    alone = [run("client", "text", prompt, *arguments).out for prompt in ("Hello", "World")]
    both = run("client", "text", "Hello", "World", *arguments, "--json").object["sequences"]
    assert [one["text"] + "\n" for one in both] == alone
    shown = run("client", "text", "Hello", "World", *arguments).out
    assert shown == f"[prompt 0] {alone[0]}[prompt 1] {alone[1]}"


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 end_to_end_grpc_client.py --streaming --output-len 10 --prompt TEXT",
    "inflight client text --streaming --output-len 10 --prompt TEXT",
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_streams(server: Server, model: str, protocol: str) -> None:
    arguments = ["--prompt", "Hello", "--output-len", "10", "--model", model, *to(server, protocol)]
    whole = run("client", "text", *arguments)
    assert run("client", "text", "--streaming", *arguments).out == whole.out
    assert run("client", "text", "--streaming", "--json", *arguments).object["responses"] > 2


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm_client.py --stop-after-ms 200 --request-id 1 --request-output-len 200",
    "inflight client tokens --stop-after-ms 200 --request-id 1 --request-output-len 200 IDS",
)
@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm_client.py --stop-after-ms 200 --stop-via-request-cancel",
    "inflight client tokens --stop-after-ms 200 --stop-via-request-cancel IDS",
)
@pytest.mark.parametrize("how", ["stop", "cancel", "http", "text"])
def test_a_request_is_stopped_early(paced: Server, how: str) -> None:
    arguments = ["-o", "1500", "--end-id=-1", "-S", "--stop-after-ms", "200", "--json"]
    command = ["client", "text", "Hello"] if how == "text" else ["client", "tokens", IDS, "--request-id", "1"]
    more = ["--stop-via-request-cancel"] if how == "cancel" else []
    found = run(*command, *arguments, *more, *to(paced, "http" if how == "http" else "grpc")).object
    # A token every 20 ms.
    assert 1 <= found["responses"] < 400
    assert found["request_id"] == "1" or how == "text"
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm_client.py --return-log-probs --return-context-logits"
    " --return-generation-logits",
    "inflight client tokens --return-log-probs --return-context-logits --return-generation-logits IDS",
)
@pytest.mark.parametrize("streaming", [False, True])
def test_log_probabilities_and_logits(
    server: Server, expected: list[int], tmp_path: Path, streaming: bool
) -> None:
    arguments = ["--return-log-probs", "--return-context-logits", "--return-generation-logits"]
    arguments += to(server, "grpc")
    arguments += ["-S"] if streaming else []
    found = run("client", "tokens", IDS, *arguments, "--save", str(tmp_path), "--json").object
    [one] = found["sequences"]
    assert one["output_ids"] == expected
    assert one["cum_log_prob"] == pytest.approx(sum(one["log_probs"]), abs=1e-3)
    logits = np.load(tmp_path / "generation_logits.npy")
    assert logits.shape[-2] == len(expected)
    assert list(logits.reshape(-1, logits.shape[-1]).argmax(-1)) == expected
    assert np.load(tmp_path / "context_logits.npy").shape[-2] == len(PROMPT)
    shown = run("client", "tokens", IDS, *arguments).out
    assert "cumulative log probability: " in shown
    assert "generation_logits: float32 [" in shown


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm_client.py --beam-width 2",
    "inflight client tokens --beam-width 2 IDS",
)
@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm_client.py --num-return-sequences 2 --top-k 5 --random-seed 7",
    "inflight client tokens --num-return-sequences 2 --top-k 5 --random-seed 7 IDS",
)
def test_beams_and_sequences(server: Server) -> None:
    beams = run("client", "tokens", IDS, "-b", "2", "--json", *to(server, "grpc")).object
    assert [one["beam"] for one in beams["sequences"]] == [0, 1]
    assert beams["sequences"][0]["output_ids"] != beams["sequences"][1]["output_ids"]
    asked = ["--num-return-sequences", "2", "--top-k", "5", "--temperature", "2", "--random-seed", "7"]
    found = run("client", "tokens", IDS, *asked, *to(server, "grpc")).out.splitlines()
    assert [line.partition("] ")[0] for line in found] == ["[sequence 0", "[sequence 1"]


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 inflight_batcher_llm_client.py --lora-path DIR --lora-task-id 0",
    "inflight client tokens --lora-path DIR --lora-task-id 0 IDS",
)
def test_adapters_are_sent_once(server: Server, expected: list[int], tmp_path: Path) -> None:
    again = ["client", "tokens", IDS, "--lora-task-id", "4711", *to(server, "grpc")]
    assert "LoRA task 4711 not found in cache" in run(*again, code=1).err
    hidden = 64 if (config := _hidden(server)) is None else config
    rank = 2
    random = np.random.default_rng(0)
    np.save(tmp_path / "model.lora_weights.npy", random.normal(0, 0.5, (1, 1, 2 * rank * hidden)))
    # Module 4 is attn_dense: hidden to hidden.
    np.save(tmp_path / "model.lora_config.npy", np.array([[[4, 0, rank]]], np.int32))
    arguments = [*again, "--lora-path", str(tmp_path)]
    first = run(*arguments).out
    assert first != ",".join(map(str, expected)) + "\n"
    assert run(*again).out == first


def _hidden(server: Server) -> int | None:
    import json

    from inflight.launch.model import find_model

    directory = find_model(None, None, weights=False).directory
    return int(json.loads((directory / "config.json").read_text())["hidden_size"])


@pytest.mark.migrates(
    "Triton",
    "curl localhost:8000/v2/health/ready",
    "inflight client health -i http",
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_health(server: Server, protocol: str) -> None:
    shown = run("client", "health", *to(server, protocol)).out
    assert shown.startswith("live: yes\nready: yes\nserver: inflight ")
    assert "model: tensorrt_llm 1 READY" in shown
    found = run("client", "health", "--json", "--model", "ensemble", *to(server, protocol)).object
    assert found["ready"]
    assert {"name": "ensemble", "version": "1", "state": "READY"} in found["models"]
    lacks = run("client", "health", "--model", "nothing", *to(server, protocol), code=1)
    assert "nothing ready: no" in lacks.out
    gone = run("client", "health", "-i", protocol, "-u", "127.0.0.1:9", code=1)
    assert gone.out == "live: no\nready: no\n"
    assert "no server answers at " in gone.err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_options_may_come_before_the_command(server: Server, protocol: str) -> None:
    options = to(server, protocol)
    assert run("client", *options, "health").out.startswith("live: yes\nready: yes\n")
    # Behind the command they win, and all of them have the same checks in both places.
    nowhere = ["-u", "127.0.0.1:9", "--json", "--timeout-s=300"]
    assert run("client", *nowhere, "tokens", IDS, *options).object["sequences"]
    wrong = run("client", "-u", "x", "--timeout-s", "0", "health", code=2)
    assert "Invalid value for '--timeout-s'" in wrong.err
    assert "No such option '--model'" in run("client", "--model", "x", "health", code=2).err
    # What follows `--` is not an option, wherever the options stand.
    assert run("client", *options, "--", "tokens", IDS).out.count(",") == 15


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_gateway_that_asks_for_a_key(start: Start, server: Server, protocol: str) -> None:
    gateway = start(
        "gateway", "--port=0", "--grpc-port=0", f"--worker={server.grpc}", "--api-key=secret"
    )  # fmt: skip
    wait_ready(gateway)
    options = ["-i", protocol, "-u", gateway.address(protocol)]
    without = run("client", "health", *options)
    assert without.out == "live: yes\nready: yes\n"
    assert without.err
    assert run("client", "tokens", IDS, *options, code=1).out == ""
    assert "model: ensemble 1 READY" in run("client", "health", *options, "--api-key", "secret").out
    assert run("client", "tokens", IDS, *options, "--api-key", "secret").out.count(",") == 15


def test_health_waits_for_a_server_that_starts(start: Start) -> None:
    worker = start_worker(start)
    done = run("client", "health", "--wait-s", "60", "-u", worker.address("grpc"))
    assert "ready: yes" in done.out


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tokens", "99999"], 1, "expected a token id below"),
        (["tokens", "40", "--model", "nothing"], 1, "Request for unknown model"),
        (["tokens", "40", "--input", "nothing=1"], 2, "has no input `nothing`"),
        (["tokens", "forty"], 2, "is not a list of token ids"),
        (["tokens"], 2, "there is no prompt"),
        (["text"], 2, "there is no prompt"),
        (["text", "a", "--embedding-bias", "b"], 2, "has no `=`"),
        (["text", "a", "--input", "top_k=many"], 2, "`top_k` must be `INT32`, got `many`"),
    ],
)
def test_mistakes_are_named(
    server: Server, protocol: str, arguments: list[str], code: int, said: str
) -> None:
    done = run("client", *arguments, *to(server, protocol), code=code)
    assert said in done.err
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_address_that_nobody_serves(protocol: str) -> None:
    done = run("client", "tokens", "40", "-i", protocol, "-u", "127.0.0.1:9", code=1)
    assert "no server answers at" in done.err
    assert "hint: start one with `inflight serve`" in done.err
