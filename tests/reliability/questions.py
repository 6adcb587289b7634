"""What the clients of `survivals` ask: every kind of answer on every surface."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from support.http import TIMEOUT_S
from support.raw_http import Incomplete, exchange, post_bytes, split_response
from support.servers import MODEL_NAME
from support.triton import message

TOKENS = 24
#: What every answer has of its own: ids, and times.
OWN = re.compile(
    rb'"(id|item_id|call_id|request_id)":"[^"]*"|"created(_at)?":\d+|"completed_at":\d+|[a-z]+_[0-9a-f]{32}'
)

#: Which choice an event is about.
CHOICE = re.compile(rb'"choices":\[\{"index":(\d)')

QUESTION = "What is machine learning?"
TOOL = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "min_tokens": 4}
SAMPLED = {"temperature": 1.0, "seed": 11}
GREEDY = {"temperature": 0.0}

CHATS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "sampled, with penalties": SAMPLED | PENALTIES | {"top_p": 0.95},
    "a schema": SAMPLED
    | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    "three choices": SAMPLED | {"n": 3},
    "a tool call": GREEDY | {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
    "log probabilities": SAMPLED | {"logprobs": True, "top_logprobs": 3},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "sampled, with penalties": SAMPLED | PENALTIES,
    "a schema": SAMPLED | {"guided_json": SCHEMA},
    "three choices": SAMPLED | {"n": 3},
    "log probabilities": SAMPLED | {"logprobs": 3},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "a schema": GREEDY | {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    "a tool call": GREEDY | {"tools": [{"type": "function", **TOOL}], "tool_choice": "required"},
    "log probabilities": GREEDY | {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "a tool call": GREEDY
    | {
        "tools": [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}],
        "tool_choice": {"type": "any"},
    },
}
#: The text models over `/v2`, which are repeated; a guide is checked in either form.
TEXTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled, with penalties": {"temperature": 1.0, "seed": 11, "top_p": 0.95, "presence_penalty": 0.5},
    "a schema": {
        "guided_decoding_guide_type": "json_schema",
        "guided_decoding_guide": json.dumps(SCHEMA),
    },
    "log probabilities": {"temperature": 1.0, "seed": 11, "return_log_probs": True},
}
#: The core model, which resumes where it answers with one sequence.
TENSORS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled, with penalties": {
        "temperature": np.float32(1.0),
        "seed": np.uint64(11),
        "presence_penalty": np.float32(0.5),
        "repetition_penalty": np.float32(1.1),
        "min_length": np.int32(4),
    },
    "three choices": {
        "temperature": np.float32(1.0),
        "seed": np.uint64(11),
        "num_return_sequences": np.int32(3),
    },
    "log probabilities": {
        "temperature": np.float32(1.0),
        "seed": np.uint64(11),
        "return_log_probs": np.bool_(True),
    },
}
PROMPT = list(range(40, 60))
#: Of these each response brings a part.
PARTS = ("output_ids", "output_log_probs", "sequence_length", "text_output")
NUMPY = {"INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_}


@dataclass(frozen=True)
class Addresses:
    """A gateway's."""

    http: str
    grpc: str


@dataclass(frozen=True)
class Ask:
    """One question."""

    name: str
    ask: Callable[[Addresses], bytes]


def asks() -> list[Ask]:
    """Every kind on every surface, streamed and in one piece."""
    messages = [{"role": "user", "content": QUESTION}]
    usage = {"stream_options": {"include_usage": True}}
    surfaces: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]] = [
        ("/v1/chat/completions", {"messages": messages, "max_tokens": TOKENS}, usage, CHATS),
        ("/v1/completions", {"prompt": QUESTION, "max_tokens": TOKENS}, usage, COMPLETIONS),
        ("/v1/responses", {"input": QUESTION, "max_output_tokens": TOKENS, "store": False}, {}, RESPONSES),
        ("/v1/messages", {"messages": messages, "max_tokens": TOKENS}, {}, MESSAGES),
    ]
    found = []
    for path, common, streamed, kinds in surfaces:
        for kind, fields in kinds.items():
            body = {"model": MODEL_NAME} | common | fields
            found.append(over_http(f"{path}, {kind}", path, body))
            found.append(over_http(f"{path}, {kind}, streamed", path, body | {"stream": True} | streamed))
    path = "/v2/models/ensemble/generate_stream"
    for kind, fields in TEXTS.items():
        body = {"text_input": QUESTION, "max_tokens": TOKENS, "stream": True, "id": "q"} | fields
        found.append(over_http(f"{path}, {kind}", path, body))
    for kind, scalars in TENSORS.items():
        found.append(over_grpc(f"ModelStreamInfer, {kind}", scalars))
    return found


def over_http(name: str, path: str, body: dict[str, Any]) -> Ask:
    """A question in JSON."""
    return Ask(name, lambda gateway: answer(gateway.http, path, body))


def answer(address: str, path: str, body: dict[str, Any]) -> bytes:
    """The answer's bytes, without what each answer has of its own. What did not come whole, or with another
    status than 200, is what it is instead."""
    try:
        response, rest = split_response(exchange(address, post_bytes(path, body)))
    except (OSError, Incomplete) as error:
        return repr(error).encode()
    if response.status != 200 or rest:
        return repr((response.status, response.body[:300], rest[:100])).encode()
    if path.startswith("/v2"):
        events = response.body.removesuffix(b"\n\n").split(b"\n\n")
        return whole([json.loads(event.removeprefix(b"data: ")) for event in events])
    events = OWN.sub(b"", response.body).split(b"\n\n")
    # Of several choices each is in order, and they take turns as they come.
    events.sort(key=lambda event: found[1] if (found := CHOICE.search(event)) else b"")
    return b"\n\n".join(events)


def over_grpc(name: str, scalars: dict[str, Any]) -> Ask:
    """A question in tensors."""
    tensors = {name: np.array([[value]]) for name, value in scalars.items()}
    asked = message(
        id="q",
        input_ids=np.array([PROMPT], dtype=np.int32),
        input_lengths=np.array([[len(PROMPT)]], dtype=np.int32),
        request_output_len=np.array([[TOKENS]], dtype=np.int32),
        streaming=np.array([[True]]),
        **tensors,
    )
    asked.parameters["triton_enable_empty_final_response"].bool_param = True
    return Ask(name, lambda gateway: stream(gateway.grpc, asked))


def stream(address: str, asked: service_pb2.ModelInferRequest) -> bytes:
    """What the responses of a stream with one request say, or how it failed."""
    with grpc.insecure_channel(address) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer
        try:
            responses = list(call(iter([asked]), timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            return repr(error).encode()
    failed = [response.error_message for response in responses if response.error_message]
    if failed or not responses[-1].infer_response.parameters["triton_final_response"].bool_param:
        return repr(("not whole", failed)).encode()
    return whole([outputs(response.infer_response) for response in responses])


def outputs(response: service_pb2.ModelInferResponse) -> dict[str, Any]:
    """A response's values by their names."""
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    return {"id": response.id} | {
        output.name: np.frombuffer(content, NUMPY[output.datatype]).tolist() for output, content in contents
    }


def whole(responses: list[dict[str, Any]]) -> bytes:
    """What responses to one request say together, for each of its sequences: a server may put one token or
    several into a response."""
    sequences: dict[str, dict[str, Any]] = {}
    for response in responses:
        own = sequences.setdefault(str(response.get("sequence_index", 0)), {})
        for name, value in response.items():
            if name == "sequence_length":
                value = sum(value)
            own[name] = own[name] + value if name in PARTS and name in own else value
    return json.dumps(sequences, sort_keys=True).encode()
