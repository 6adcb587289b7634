"""The four text models of a worker under tritonclient: preprocessing, postprocessing, ensemble and BLS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from support.metrics import active_requests
from support.processes import START_S, wait_until
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Server, Start
from support.triton import MODEL, TritonStream, inputs, is_final, tensor, tokens

PROMPT = "Hello"
TEXT_MODELS = ["ensemble", "tensorrt_llm_bls"]
MODELS = [MODEL, "preprocessing", "postprocessing", *TEXT_MODELS]
#: Datatypes of what a text model is asked with, where Python's own does not say.
DATATYPES = {
    "top_p": "FP32",
    "temperature": "FP32",
    "embedding_bias_weights": "FP32",
    "EMBEDDING_BIAS_WEIGHTS": "FP32",
    "seed": "UINT64",
    "random_seed": "UINT64",
    "lora_task_id": "UINT64",
    "PROMPT_TABLE_EXTRA_ID": "UINT64",
    "CUM_LOG_PROBS": "FP32",
}


def made(**values: Any) -> list[triton.InferInput]:
    """Inputs by name, each with its batch dimension; the datatype is that of the first value."""
    asked = []
    for name, rows in values.items():
        first = np.ravel(np.asarray(rows, dtype=object))
        kind = {str: "BYTES", bool: "BOOL", int: "INT32", float: "FP32"}[type(first[0])]
        if kind == "BYTES":
            rows = [[text.encode() for text in row] for row in rows]
        asked.append(tensor(name, rows, DATATYPES.get(name, kind)))
    return asked


def ask(prompts: list[str], max_tokens: int = 8, **scalars: Any) -> list[triton.InferInput]:
    """A batch for a text model. A list is one row's strings, as in word lists."""
    values = {
        name: [value if isinstance(value, list) else [value]] * len(prompts)
        for name, value in {"max_tokens": max_tokens, **scalars}.items()
    }
    return made(text_input=[[prompt] for prompt in prompts], **values)


def texts(result: triton.InferResult) -> list[str]:
    return [text.decode() for text in np.ravel(result.as_numpy("text_output"))]


class TextStream(TritonStream):
    """A stream to a text model."""

    def __init__(self, address: str, model: str) -> None:
        super().__init__(address)
        self._model = model

    def ask(self, request_id: str, asked: list[triton.InferInput]) -> list[triton.InferResult]:
        """The responses to one request, up to its last."""
        self.client.async_stream_infer(
            self._model, asked, request_id=request_id, enable_empty_final_response=True
        )
        return list(self.until_final())


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(server.grpc)
    yield made
    made.close()


@pytest.fixture(scope="module")
def settings_address(start_for_session: Start) -> str:
    """A worker that leaves prompts out, accumulates, and calls its core model otherwise."""
    worker = start_for_session(
        "worker",
        *MODEL_ARGUMENTS,
        f"--served-model-name={MODEL_NAME}",
        "--core-model-name=target",
        "--exclude-input-in-output",
        "--accumulate-tokens",
        "--fill-outputs",
        "--wrap-token-ids=true",
        "--grpc-port=0",
        "--metrics-port=0",
    )
    address = worker.address("grpc")
    client = triton.InferenceServerClient(address)
    worker.wait_until("it is ready", client.is_server_ready, START_S)
    client.close()
    return address


@pytest.fixture(scope="module")
def settings(settings_address: str) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(settings_address)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(client: triton.InferenceServerClient) -> str:
    """What the prompt is continued with, greedily."""
    [text] = texts(client.infer("ensemble", ask([PROMPT], exclude_input_in_output=True)))
    assert len(text.split()) > 3
    return text


def test_every_model_is_there(client: triton.InferenceServerClient) -> None:
    index = client.get_model_repository_index().models
    assert [(model.name, model.state) for model in index] == [(name, "READY") for name in MODELS]
    assert [stats.name for stats in client.get_inference_statistics().model_stats] == MODELS
    for name in MODELS:
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, "1")
        assert not client.is_model_ready(name, "2")
        metadata = client.get_model_metadata(name)
        config = client.get_model_config(name).config
        assert metadata.name == config.name == name
        assert [each.name for each in metadata.inputs] == [each.name for each in config.input]
        assert [each.name for each in metadata.outputs] == [each.name for each in config.output]
        for described, configured in zip(metadata.inputs, config.input, strict=True):
            assert list(described.shape) == [-1, *configured.dims]
    assert config.model_transaction_policy.decoupled
    steps = client.get_model_config("ensemble").config.ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["preprocessing", MODEL, "postprocessing"]


def test_the_three_models_in_a_row_are_the_ensemble(
    client: triton.InferenceServerClient, expected: str
) -> None:
    asked = made(QUERY=[[PROMPT]], REQUEST_OUTPUT_LEN=[[8]], BAD_WORDS_DICT=[[""]], STOP_WORDS_DICT=[[""]])
    before = client.infer("preprocessing", asked)
    core = {
        "INPUT_ID": "input_ids",
        "REQUEST_INPUT_LEN": "input_lengths",
        "REQUEST_OUTPUT_LEN": "request_output_len",
        "DECODER_INPUT_ID": "decoder_input_ids",
        "STOP_WORDS_IDS": "stop_words_list",
        "OUT_END_ID": "end_id",
        "OUT_PAD_ID": "pad_id",
    }
    answer = client.infer(
        MODEL, [tensor(theirs, before.as_numpy(ours), "INT32") for ours, theirs in core.items()]
    )
    after = client.infer(
        "postprocessing",
        [
            tensor("TOKENS_BATCH", answer.as_numpy("output_ids"), "INT32"),
            tensor("SEQUENCE_LENGTH", answer.as_numpy("sequence_length"), "INT32"),
        ],
    )
    whole = client.infer("ensemble", ask([PROMPT]))
    assert np.ravel(after.as_numpy("OUTPUT"))[0].decode() == texts(whole)[0]
    assert texts(whole)[0].endswith(expected)
    assert tokens(answer)[: before.as_numpy("INPUT_ID").size] == before.as_numpy("INPUT_ID")[0].tolist()


def test_preprocessing_takes_batches(client: triton.InferenceServerClient) -> None:
    prompts = ["Hello", "One two three", "a"]
    alone = [
        client.infer("preprocessing", made(QUERY=[[prompt]], REQUEST_OUTPUT_LEN=[[4]])) for prompt in prompts
    ]
    batch = client.infer(
        "preprocessing",
        made(
            QUERY=[[prompt] for prompt in prompts],
            REQUEST_OUTPUT_LEN=[[4], [5], [6]],
            BAD_WORDS_DICT=[[" the", ""], [" a", " the"], ["", ""]],
            PROMPT_TABLE_EXTRA_ID=[[7], [8], [9]],
        ),
    )
    ids, lengths = batch.as_numpy("INPUT_ID"), batch.as_numpy("REQUEST_INPUT_LEN")
    for row, single in enumerate(alone):
        assert ids[row, : lengths[row, 0]].tolist() == single.as_numpy("INPUT_ID")[0].tolist()
    assert ids.shape == (3, lengths.max())
    assert batch.as_numpy("REQUEST_OUTPUT_LEN").tolist() == [[4], [5], [6]]
    words = batch.as_numpy("BAD_WORDS_IDS")
    assert [[end for end in row[1].tolist() if end >= 0] for row in words] == [[1], [1, 2], []]
    assert words[1, 0, 1] == words[0, 0, 0]
    extra = batch.as_numpy("OUT_PROMPT_TABLE_EXTRA_IDS")
    assert [set(row[: lengths[place, 0]].tolist()) for place, row in enumerate(extra)] == [{7}, {8}, {9}]


def test_postprocessing_takes_batches_and_beams(client: triton.InferenceServerClient) -> None:
    words = [" the", " a"]
    packed = client.infer(
        "preprocessing", made(QUERY=[["x"]], REQUEST_OUTPUT_LEN=[[1]], BAD_WORDS_DICT=[words])
    )
    the, a = packed.as_numpy("BAD_WORDS_IDS")[0, 0].tolist()
    result = client.infer(
        "postprocessing",
        made(
            TOKENS_BATCH=[[[the, a, -1], [a, -1, -1]], [[a, a, a], [the, the, the]]],
            SEQUENCE_LENGTH=[[2, 1], [3, 0]],
            CUM_LOG_PROBS=[[-1.0, -2.0], [-3.0, -4.0]],
        ),
    )
    # In a line, as NVIDIA's clients read it.
    assert [text.decode().strip() for text in result.as_numpy("OUTPUT")] == ["the a", "a", "a a a", ""]
    # As releases up to 0.11 pass them through.
    assert result.as_numpy("OUT_CUM_LOG_PROBS").tolist() == [[-1.0, -2.0], [-3.0, -4.0]]


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_an_answer_repeats_the_prompt_unless_told_otherwise(
    client: triton.InferenceServerClient, expected: str, model: str
) -> None:
    result = client.infer(model, ask([PROMPT]), request_id="r1")
    assert texts(result) == [PROMPT + expected]
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == (model, "1", "r1")
    assert is_final(result)
    without = client.infer(model, ask([PROMPT], exclude_input_in_output=True))
    assert texts(without) == [expected]


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_stream_is_the_whole_text_in_pieces(server: Server, expected: str, model: str) -> None:
    stream = TextStream(server.grpc, model)
    try:
        results = stream.ask("s", ask([PROMPT], stream=True))
    finally:
        stream.close()
    assert len(results) > 2
    assert "".join(text for result in results for text in texts(result)) == expected
    assert [is_final(result) for result in results].count(True) == 1
    assert all(result.get_response().id == "s" for result in results)


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_characters_of_several_tokens_stay_whole(
    server: Server, client: triton.InferenceServerClient, model: str
) -> None:
    """What Triton's own ensemble shows as U+FFFD: every piece of its stream is decoded alone."""
    wanted = "日本語 🙂"
    packed = client.infer(
        "preprocessing", made(QUERY=[["x"]], REQUEST_OUTPUT_LEN=[[1]], BAD_WORDS_DICT=[list(wanted)])
    )
    ends = packed.as_numpy("BAD_WORDS_IDS")[0, 1]
    pieces = int(ends[ends >= 0].max())
    assert pieces > len(wanted), "the characters are single tokens"
    asked = ask(
        ["x"], 48, stream=True, end_id=-1, embedding_bias_words=list(wanted),
        embedding_bias_weights=[1000.0] * len(wanted), temperature=5.0, top_k=50, seed=3,
    )  # fmt: skip
    stream = TextStream(server.grpc, model)
    try:
        streamed = "".join(text for result in stream.ask("s", asked) for text in texts(result))
    finally:
        stream.close()
    [whole] = texts(
        client.infer(
            model, [one for one in asked if one.name() != "stream"] + made(exclude_input_in_output=[[True]])
        )
    )
    assert streamed == whole


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_of_several_sequences(
    server: Server, client: triton.InferenceServerClient, model: str, stream: bool
) -> None:
    prompts, sequences = [PROMPT, "One two"], 2
    fixed = {"end_id": -1, "exclude_input_in_output": True}
    alone = [texts(client.infer(model, ask([prompt], 6, **fixed)))[0] for prompt in prompts]
    opened = TextStream(server.grpc, model)
    found: dict[tuple[int, int], str] = {}
    try:
        asked = ask(prompts, 6, num_return_sequences=sequences, stream=stream, **fixed)
        for result in opened.ask("batch", asked):
            row, index = (int(result.as_numpy(name)[0, 0]) for name in ("batch_index", "sequence_index"))
            key = (row, index)
            found[key] = found.get(key, "") + texts(result)[0]
    finally:
        opened.close()
    assert found == {(row, index): alone[row] for row in range(2) for index in range(sequences)}


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_beams_are_one_answer(client: triton.InferenceServerClient, model: str) -> None:
    result = client.infer(
        model, ask([PROMPT], 5, beam_width=3, return_log_probs=True, exclude_input_in_output=True)
    )
    assert result.as_numpy("text_output").shape == (3,)
    assert result.as_numpy("cum_log_probs").shape == (1, 3)
    assert len(set(texts(result))) == 3


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_words_can_be_banned_and_wanted(
    client: triton.InferenceServerClient, expected: str, model: str
) -> None:
    word = " " + expected.split()[1]
    fixed = {"exclude_input_in_output": True}
    assert word not in texts(client.infer(model, ask([PROMPT], bad_words=[word], **fixed)))[0]
    wanted = ask([PROMPT], 6, embedding_bias_words=[" the"], embedding_bias_weights=[1000.0], **fixed)
    assert texts(client.infer(model, wanted)) == [" the" * 6]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_words_end_a_text(
    server: Server, client: triton.InferenceServerClient, expected: str, stream: bool
) -> None:
    """BLS leaves the stop word out, wherever tokens begin and end; the ensemble's core model keeps it."""
    word = expected.split()[2]
    middle = word[1:] or word
    opened = TextStream(server.grpc, "tensorrt_llm_bls")
    try:
        asked = ask([PROMPT], stop_words=[middle], stream=stream, exclude_input_in_output=True)
        results = opened.ask("b", asked)
    finally:
        opened.close()
    before = expected[: expected.index(middle)]
    assert "".join(text for result in results for text in texts(result)) == before
    assert [is_final(result) for result in results].count(True) == 1
    whole = client.infer("ensemble", ask([PROMPT], stop_words=[" " + word], exclude_input_in_output=True))
    assert texts(whole) == [expected[: expected.index(" " + word)] + " " + word]


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_log_probabilities_and_counts_come_with_the_text(
    client: triton.InferenceServerClient, model: str
) -> None:
    asked = ask(
        [PROMPT], return_log_probs=True, return_num_output_tokens=True, return_num_input_tokens=True,
        exclude_input_in_output=True,
    )  # fmt: skip
    result = client.infer(model, asked)
    log_probs = np.ravel(result.as_numpy("output_log_probs"))
    assert len(log_probs) == result.as_numpy("num_output_tokens")[0, 0]
    assert result.as_numpy("cum_log_probs")[0, 0] == pytest.approx(log_probs.sum(), abs=1e-4)
    prompt = client.infer("preprocessing", made(QUERY=[[PROMPT]], REQUEST_OUTPUT_LEN=[[1]]))
    assert result.as_numpy("num_input_tokens")[0, 0] == prompt.as_numpy("REQUEST_INPUT_LEN")[0, 0]
    only = client.infer(model, asked, outputs=[triton.InferRequestedOutput("cum_log_probs")])
    assert [output.name for output in only.get_response().outputs] == ["cum_log_probs"]


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "requests with `random_seed`, `min_length` and `output_log_probs`, as earlier releases call them",
    "inflight serve MODEL",
)
def test_names_of_older_releases_are_known(client: triton.InferenceServerClient, expected: str) -> None:
    older = made(random_seed=[[3]], min_length=[[2]])
    fixed = {"exclude_input_in_output": True}
    for model in TEXT_MODELS:
        assert texts(client.infer(model, ask([PROMPT], **fixed) + older)) == [expected]
    asked = [*inputs([40, 41], 4, runtime_top_k=1, exclude_input_in_output=True), *older]
    assert len(tokens(client.infer(MODEL, asked))) >= 2
    with_log_probs = client.infer(MODEL, [*asked, tensor("output_log_probs", [[True]], "BOOL")])
    assert (with_log_probs.as_numpy("cum_log_probs") < 0).all()


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 tools/fill_template.py -i tensorrt_llm/config.pbtxt exclude_input_in_output:True",
    "inflight worker MODEL --exclude-input-in-output true",
)
def test_a_setting_of_the_server_leaves_prompts_out(
    settings: triton.InferenceServerClient, expected: str
) -> None:
    for model in TEXT_MODELS:
        assert texts(settings.infer(model, ask([PROMPT]))) == [expected]
        assert texts(settings.infer(model, ask([PROMPT], exclude_input_in_output=False))) == [
            PROMPT + expected
        ]
    ids = tokens(settings.infer("target", inputs([40, 41], 4, runtime_top_k=1, end_id=-1)))
    assert len(ids) == 4
    parameters = settings.get_model_config("tensorrt_llm_bls").config.parameters
    assert parameters["exclude_input_in_output"].string_value == "true"


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "answers with zeros as log probabilities and logits, which clients of releases up to `0.11` read",
    "inflight worker MODEL --fill-outputs true",
)
@pytest.mark.parametrize("model", ["target", *TEXT_MODELS])
def test_a_setting_fills_outputs_as_older_releases_did(
    settings: triton.InferenceServerClient, client: triton.InferenceServerClient, model: str
) -> None:
    asked = inputs([40, 41], 4) if model == "target" else ask([PROMPT], 4)
    result = settings.infer(model, asked)
    # A zero for each of the four tokens, and one for what has many in each.
    shapes = {
        "cum_log_probs": (1, 1),
        "output_log_probs": (1, 1, 4),
        "context_logits": (1, 1, 1),
        "generation_logits": (1, 1, 1, 1),
    }
    for name, shape in shapes.items():
        assert result.as_numpy(name).shape == shape
        assert not result.as_numpy(name).any()
    own = client.infer(MODEL if model == "target" else model, asked)
    assert all(own.as_numpy(name) is None for name in shapes)
    with_log_probs = settings.infer(model, [*asked, tensor("return_log_probs", [[True]], "BOOL")])
    assert (with_log_probs.as_numpy("cum_log_probs") < 0).all()


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 tools/inflight_batcher_llm/benchmark_core_model.py -i grpc token-norm-dist",
    "the same, against `inflight worker MODEL --wrap-token-ids true`",
)
def test_token_ids_beyond_the_vocabulary_may_count_as_their_remainder(
    settings: triton.InferenceServerClient, client: triton.InferenceServerClient
) -> None:
    logits = client.infer(MODEL, inputs([40], 1, return_context_logits=True)).as_numpy("context_logits")
    vocabulary = logits.shape[-1]
    beyond = [40 + 3 * vocabulary, 41]
    wrapped = settings.infer("target", inputs(beyond, 4, runtime_top_k=1))
    assert tokens(wrapped) == tokens(settings.infer("target", inputs([40, 41], 4, runtime_top_k=1)))
    with pytest.raises(InferenceServerException, match=f"`{beyond[0]}`, expected a token id below"):
        client.infer(MODEL, inputs(beyond, 4))


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 scripts/launch_triton_server.py --tensorrt_llm_model_name target",
    "inflight worker MODEL --core-model-name target",
)
def test_the_core_model_may_have_another_name(settings: triton.InferenceServerClient) -> None:
    index = [model.name for model in settings.get_model_repository_index().models]
    assert index[0] == "target"
    assert settings.get_model_metadata("target").name == "target"
    assert settings.get_model_config("target").config.name == "target"
    answer = settings.infer("target", inputs([40, 41], 2)).get_response()
    assert answer.model_name == "target"
    assert settings.get_inference_statistics("target").model_stats[0].name == "target"
    with pytest.raises(InferenceServerException, match="Request for unknown model"):
        settings.infer(MODEL, inputs([40, 41], 2))


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 tools/fill_template.py -i tensorrt_llm_bls/config.pbtxt accumulate_tokens:True",
    "inflight worker MODEL --accumulate-tokens true",
)
def test_accumulated_responses_hold_all_text_so_far(settings_address: str, expected: str) -> None:
    found: list[str] = []
    for model in TEXT_MODELS:
        stream = TextStream(settings_address, model)
        try:
            found = [text for result in stream.ask("a", ask([PROMPT], stream=True)) for text in texts(result)]
        finally:
            stream.close()
        if model == "ensemble":
            # Only BLS has the parameter, as in Triton.
            assert "".join(found) == expected
    assert len(found) > 2
    assert all(later.startswith(earlier) for earlier, later in pairwise(found))
    assert found[-1] == expected


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_work(paced: Server, model: str, stream: bool) -> None:
    opened = TextStream(paced.grpc, model)
    opened.client.async_stream_infer(model, ask([PROMPT], 1500, stream=stream, end_id=-1))
    wait_until("it runs", lambda: active_requests(paced.metrics) == 1)
    opened.close(cancel=True)
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)


def test_a_stop_to_the_core_model_ends_a_text_models_work(paced: Server) -> None:
    stream = TextStream(paced.grpc, "ensemble")
    stream.client.async_stream_infer("ensemble", ask([PROMPT], 1500, stream=True, end_id=-1), request_id="e")
    result, error = stream.next()
    assert error is None
    stream.send("e", inputs([0], 1, stop=True))
    models = set()
    for _ in range(2):
        # Its own last response, and the answer to the stop.
        while not is_final(result) or result.get_response().model_name in models:
            result, error = stream.next()
            assert error is None
        models.add(result.get_response().model_name)
    stream.close()
    assert models == {"ensemble", MODEL}
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)


def test_a_stream_stopped_by_a_word_frees_its_place(
    server: Server, client: triton.InferenceServerClient, expected: str
) -> None:
    stream = TextStream(server.grpc, "tensorrt_llm_bls")
    try:
        asked = ask([PROMPT], 1000, stop_words=[expected[3:5]], stream=True, end_id=-1)
        results = stream.ask("w", asked)
    finally:
        stream.close()
    assert "".join(text for result in results for text in texts(result)) == expected[:3]
    assert len(results) < 100


def test_text_models_count(client: triton.InferenceServerClient) -> None:
    def counts(model: str) -> tuple[int, int]:
        [stats] = client.get_inference_statistics(model).model_stats
        return stats.inference_stats.success.count, stats.inference_stats.fail.count

    before = {model: counts(model) for model in MODELS[1:]}
    client.infer("preprocessing", made(QUERY=[[PROMPT]], REQUEST_OUTPUT_LEN=[[1]]))
    client.infer("postprocessing", made(TOKENS_BATCH=[[[5]]], SEQUENCE_LENGTH=[[1]]))
    for model in TEXT_MODELS:
        client.infer(model, ask([PROMPT], 2))
        with pytest.raises(InferenceServerException):
            client.infer(model, ask([PROMPT], 0))
    after = {model: counts(model) for model in MODELS[1:]}
    assert after == {
        model: (success + 1, failed + (model in TEXT_MODELS)) for model, (success, failed) in before.items()
    }


@pytest.mark.parametrize(
    ("model", "asked", "reason"),
    [
        ("preprocessing", made(QUERY=[["a"]]), "the required input `REQUEST_OUTPUT_LEN` is missing"),
        ("preprocessing", made(QUERY=[["a"]], REQUEST_OUTPUT_LEN=[[1], [1]]), "batch size `2`"),
        ("preprocessing", made(QUERY=[[1]], REQUEST_OUTPUT_LEN=[[1]]), "`QUERY` is INT32, expected BYTES"),
        ("preprocessing", made(QUERY=[["a", "b"]], REQUEST_OUTPUT_LEN=[[1]]), r"expected \[batch, 1\]"),
        (
            "preprocessing",
            made(QUERY=[["a"]], REQUEST_OUTPUT_LEN=[[1]], IMAGE_URL=[["http://localhost/x"]]),
            "`IMAGE_URL` is not supported",
        ),
        (
            "preprocessing",
            made(QUERY=[["a"]], REQUEST_OUTPUT_LEN=[[1]], nothing=[[1]]),
            "unknown input tensor `nothing`",
        ),
        (
            "postprocessing",
            made(TOKENS_BATCH=[[[1]]], SEQUENCE_LENGTH=[[2]]),
            "`SEQUENCE_LENGTH` has length `2`",
        ),
        *(
            case
            for model in TEXT_MODELS
            for case in [
                (model, made(max_tokens=[[1]]), "the required input `text_input` is missing"),
                (model, ask(["a"], 0), "`request_output_len` has value `0`"),
                (model, ask(["a"], beam_width=9), "`beam_width` has value `9`"),
                (model, ask(["a"], lora_task_id=3), "LoRA task 3 not found in cache"),
                (model, ask(["a"], temperature=-1.0), "`temperature` has value `-1`"),
                (model, ask(["a"], stream=True), "ModelInfer has one response and `streaming`"),
                (model, ask(["a", "b"]), "use ModelStreamInfer for a batch"),
                (model, ask(["word " * 60000]), "`text_input` has about|the prompt in `input_ids` has"),
                (
                    model,
                    ask(["a"], embedding_bias_words=[" the", " a"], embedding_bias_weights=[1.0]),
                    "`2` embedding bias words and `1` weights",
                ),
            ]
        ),
        (
            "tensorrt_llm_bls",
            ask(["a"], image_url_input="http://localhost/x"),
            "`image_url_input` is not supported",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    server: Server,
    client: triton.InferenceServerClient,
    model: str,
    asked: list[triton.InferInput],
    reason: str,
) -> None:
    with pytest.raises(InferenceServerException, match=reason):
        client.infer(model, asked)
    if "ModelInfer" in reason or "ModelStreamInfer" in reason:
        return
    stream = TextStream(server.grpc, model)
    try:
        stream.client.async_stream_infer(model, asked, request_id="bad")
        result, error = stream.next()
    finally:
        stream.close()
    assert result is None
    with pytest.raises(InferenceServerException, match=reason):
        raise error  # type: ignore[misc]
