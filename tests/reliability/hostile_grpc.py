"""Hostile clients of a worker's gRPC port: half messages, garbage, wrong tensors, floods.

Promised: a bad message fails alone, memory for messages that have arrived in part is bounded in total, and
the gateway on the same worker loses nothing.
"""

from __future__ import annotations

import random
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2_grpc

from reliability.bystander import Bystander
from reliability.report import Report, Scale
from reliability.site import Site, expect_all_free, memory_mib, site
from support import http2
from support.http2 import DATA, END_HEADERS, HEADERS, RST_STREAM, Connection, block, frame
from support.triton import message

SERVICE = "/inference.GRPCInferenceService"
STREAM = f"{SERVICE}/ModelStreamInfer"
#: Messages that begin and never end: more than the budget of four of the largest size would hold.
HALF_MESSAGES = 40
HALF_BYTES = 60 << 20
SENT_BYTES = 48 << 20
#: What a test has to send to have tried; the server's own budget is four messages of 64 MiB.
LEAST_BYTES = 64 << 20
#: Four messages of 64 MiB, and what HTTP/2's windows hold of the others.
HALF_GROWTH_MIB = 256 + 64 + 128
#: What the gateway would not answer for: the server's own fault.
FAULTS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
#: tonic's own: how a body that ends early, or is not a message, is refused.
FRAMING = ("protobuf", "decode", "compress", "length", "h2 protocol error", "Unexpected EOF", "message")
DATATYPES = ("INT32", "INT64", "UINT8", "FP32", "FP64", "BOOL", "BYTES", "INT7", "")
#: What a worker may be told; the values are wrong more often than not.
NAMES = """
input_ids input_lengths request_output_len num_return_sequences beam_width temperature runtime_top_k
runtime_top_p seed stop_words_list bad_words_list embedding_bias streaming stop end_id pad_id min_length
inflight_handle inflight_min_p inflight_logit_bias_ids inflight_logit_bias_values prompt_embedding_table
draft_input_ids lora_task_id return_log_probs no_such_tensor
""".split()  # noqa: SIM905 -- one name a line would hide the rest of the file


def run(scale: Scale, report: Report) -> None:
    """Half messages, then garbage, then floods."""
    with site() as made:
        worker = made.workers[0].address("grpc")
        with Bystander(made.address, made.model, report):
            half_messages(scale, report, made, worker)
            with grpc.insecure_channel(worker) as channel:
                garbage(scale, report, channel)
                wrong_tensors(scale, report, channel)
            paths(report, worker)
            rapid_reset(scale, report, worker)
            connections(scale, report, made, worker)
        expect_all_free(report, made)


def call(path: str) -> list[tuple[str, str]]:
    """The headers of a gRPC call."""
    return [*http2.post_fields(path, "application/grpc"), ("te", "trailers")]


def half_messages(scale: Scale, report: Report, made: Site, worker: str) -> None:
    """Connections that each send most of a large message, and then nothing."""
    before = memory_mib(made.workers[0].pid)
    peak = before
    # Until enough was sent, which takes its time on a busy machine.
    least, latest = time.monotonic() + scale.of(4, 20), time.monotonic() + 40

    def is_over() -> bool:
        now = time.monotonic()
        return now > latest or (now > least and sum(one.sent for one in halves) > LEAST_BYTES)

    with ExitStack() as stack, ThreadPoolExecutor(HALF_MESSAGES) as pool:
        halves = [stack.enter_context(Connection(worker)) for _ in range(HALF_MESSAGES)]

        def send(connection: Connection) -> None:
            report.attempt("half messages of 60 MiB")
            head = struct.pack(">BI", 0, HALF_BYTES)
            connection.send(frame(HEADERS, END_HEADERS, 1, block(*call(STREAM))) + frame(DATA, 0, 1, head))
            connection.send_within_windows(1, SENT_BYTES, is_over, before=len(head))

        sending = [pool.submit(send, connection) for connection in halves]
        while not is_over():
            peak = max(peak, memory_mib(made.workers[0].pid))
            time.sleep(0.05)
        for one in sending:
            one.result()
        sent = sum(connection.sent for connection in halves)
    report.measure("bytes that the worker took of half messages", f"{sent >> 20} MiB")
    report.expect("half messages were sent", sent > LEAST_BYTES, sent)
    report.measure("the worker's memory with half messages", f"+{peak - before:.0f} MiB")
    report.expect("memory of half messages is bounded", peak - before < HALF_GROWTH_MIB, peak - before)


def spoiled(rng: random.Random, valid: bytes) -> bytes:
    """A message with bytes changed, removed or added."""
    made = bytearray(valid)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(made) or 1)
        match rng.randrange(4):
            case 0 if made:
                made[place] = rng.randrange(256)
            case 1:
                del made[place : place + rng.randint(1, 12)]
            case 2:
                made[place:place] = rng.randbytes(rng.randint(1, 12))
            case _:
                made[place:place] = made[: rng.randrange(40)]
    return bytes(made)


def judge(report: Report, what: str, error: Any, sent: object) -> None:
    """A status that says that the message is at fault."""
    code, detail = error.code(), str(error.details())
    held = code not in FAULTS or any(word in detail for word in FRAMING)
    report.expect(f"{what}: the message is at fault", held, (code, detail[:200], repr(sent)[:300]))


def garbage(scale: Scale, report: Report, channel: grpc.Channel) -> None:
    """Protobufs that are none, or nearly."""
    infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
    valid = message().SerializeToString()
    for number in range(scale.of(300, 20_000)):
        rng = random.Random(f"{scale.seed} {number}")
        sent = spoiled(rng, valid) if rng.random() < 0.9 else rng.randbytes(rng.randrange(200))
        report.attempt("spoiled protobufs")
        try:
            infer(sent, timeout=20)
        except grpc.RpcError as error:
            judge(report, "spoiled protobuf", error, sent)


def wrong_tensors(scale: Scale, report: Report, channel: grpc.Channel) -> None:
    """Well-formed messages whose tensors are not."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for number in range(scale.of(200, 10_000)):
        rng = random.Random(f"{scale.seed} tensors {number}")
        sent = message()
        for _ in range(rng.randint(1, 3)):
            spoil_tensors(rng, sent)
        report.attempt("messages with wrong tensors")
        with suppress(StopIteration):
            try:
                if rng.random() < 0.5:
                    stub.ModelInfer(sent, timeout=20)
                else:
                    for _ in stub.ModelStreamInfer(iter([sent]), timeout=20):
                        pass
            except grpc.RpcError as error:
                judge(report, "wrong tensors", error, sent)


def spoil_tensors(rng: random.Random, sent: Any) -> None:
    """Makes one thing wrong."""
    place = rng.randrange(len(sent.inputs)) if sent.inputs else 0
    match rng.randrange(6):
        case 0 if sent.inputs:
            sent.inputs[place].shape[:] = [
                rng.choice((-1, 0, 1, 3, 2**31, 2**62)) for _ in range(rng.randint(0, 4))
            ]
        case 1 if sent.inputs:
            sent.inputs[place].datatype = rng.choice(DATATYPES)
        case 2 if sent.inputs:
            sent.inputs[place].name = rng.choice(NAMES)
        case 3 if sent.raw_input_contents:
            sent.raw_input_contents[rng.randrange(len(sent.raw_input_contents))] = rng.randbytes(
                rng.randint(0, 40)
            )
        case 4:
            values = np.array([[rng.choice((-1, 0, 1, 2**31 - 1, -(2**31)))]], dtype=np.int32)
            sent.inputs.add(name=rng.choice(NAMES), datatype=rng.choice(DATATYPES), shape=[1, 1])
            sent.raw_input_contents.append(values.tobytes())
        case _:
            sent.parameters[rng.choice(("timeout", "priority", "x"))].int64_param = rng.choice(
                (-1, 0, 1, 2**62)
            )


def paths(report: Report, worker: str) -> None:
    """Calls that are no calls: wrong methods, types, encodings; a body without its frame."""
    for name, fields, body in (
        ("an unknown method", call("/no.Such/Method"), bytes(5)),
        ("a type that is not gRPC", http2.post_fields(STREAM, "text/plain"), bytes(5)),
        ("an unknown encoding", [*call(STREAM), ("grpc-encoding", "zip")], b"\1" + bytes(4)),
        ("a timeout that is none", [*call(STREAM), ("grpc-timeout", "99999999999H")], bytes(5)),
        ("a length of 4 GiB", call(STREAM), b"\0\xff\xff\xff\xff"),
        ("a body without a frame", call(f"{SERVICE}/ModelInfer"), b"abc"),
        ("a GET", http2.get_fields("/metrics"), b""),
    ):
        with Connection(worker) as connection:
            connection.send(http2.request(1, fields, body))
            answered = connection.until(HEADERS, 1, 5) is not None or connection.is_closed
            report.expect(f"{name}: answered or closed", answered)
        report.attempt("calls that are not gRPC")


def rapid_reset(scale: Scale, report: Report, worker: str) -> None:
    """Calls that are opened and reset."""
    for _ in range(scale.of(2, 10)):
        with Connection(worker) as connection:
            for number in range(scale.of(1000, 10_000)):
                stream = 2 * number + 1
                opened = frame(HEADERS, END_HEADERS, stream, block(*call(STREAM)))
                if not connection.send(opened + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))):
                    break
                report.attempt("calls that are reset at once")


def connections(scale: Scale, report: Report, made: Site, worker: str) -> None:
    """Many connections that do nothing."""
    with ExitStack() as stack:
        for _ in range(scale.of(200, 800)):
            with suppress(OSError):
                stack.enter_context(Connection(worker))
            report.attempt("connections that do nothing")
        report.expect("the gateway keeps its worker", made.workers_up() == 1)
