"""Topology files: what they may say, and how mistakes in them are reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inflight.errors import UserMistake
from inflight.launch.gpus import parse_groups
from inflight.launch.topology import Drain, Gateways, Model, Mpi, Restart, Topology, groups_of
from inflight.launch.topology_file import LARGEST_FILE_BYTES, check_names, parse, read, reference

BASE = Path("/etc/inflight")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "topology.md"

EVERYTHING = """
models:
  - name: llama
    path: engines/llama
    executor: tensorrt_llm
    tp_size: 2
    replicas: 2
    gpus: "0,1;2,3"
    executor_options: {enable_chunked_context: true, kv_cache_free_gpu_mem_fraction: 0.9}
    worker_options:
      max_queued_requests: 100
  - {}
gateways: {replicas: 2, port: 9000, api_key_file: keys}
restart: {most: 3, first_wait_s: 0.5}
drain: {worker_s: 30}
mpi: {oversubscribe: yes, arguments: [--display-map]}
deploy:
"""


def test_every_section_is_read() -> None:
    assert parse(EVERYTHING, BASE) == Topology(
        models=(
            Model(
                name="llama",
                path="/etc/inflight/engines/llama",
                executor="tensorrt_llm",
                tp_size=2,
                replicas=2,
                gpus=(("0", "1"), ("2", "3")),
                executor_options=(
                    ("enable_chunked_context", "true"),
                    ("kv_cache_free_gpu_mem_fraction", "0.9"),
                ),
                worker_options=(("max_queued_requests", "100"),),
            ),
            Model(),
        ),
        gateways=Gateways(replicas=2, port=9000, api_key_file="/etc/inflight/keys"),
        restart=Restart(most=3, first_wait_s=0.5),
        drain=Drain(worker_s=30.0),
        mpi=Mpi(oversubscribe=True, arguments=("--display-map",)),
    )


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("", "a topology must be a mapping", "docs/reference/topology.md"),
        ("models: []", "the topology has no `models`", "add one"),
        ("gateways: {}", "`models` must be a list", "add one model"),
        ("models: [1]", "`models[0]` must be a mapping of keys", "indent"),
        ("model: [{}]", "unknown key `model`", "did you mean `models`?"),
        ("models: [{}, {replica: 2}]", "unknown key `models[1].replica`", "did you mean `replicas`?"),
        ("models: [{tp-size: 2}]", "unknown key `models[0].tp-size`", "did you mean `tp_size`?"),
        ("models: [{}]\ngateways: {x: 1}", "unknown key `gateways.x`", "use one of replicas, host"),
        ("models: [{replicas: two}]", "option `models[0].replicas` must be an integer of at least 1", "pass"),
        ("models: [{replicas: 0}]", "option `models[0].replicas` must be an integer of at least 1", "pass"),
        ("models: [{executor: vllm}]", "`models[0].executor` must be one of reference, simulated", "pass"),
        ("models: [{name: [a]}]", "`models[0].name` must be one value", "pass one value"),
        ("models: [{executor_options: [a]}]", "`models[0].executor_options` must be names", "names with"),
        ("models: [{grpc_port: 70000}]", "`models[0].grpc_port` must be a port, got `70000`", "65535"),
        ("models: [{gpus: a}]", "`models[0].gpus` must be GPUs, got `a`", "indices"),
        ("models: [{gpus: '0,1'}]", "`models[0].gpus` is `0,1`, and 1 replica of 1 GPU need 1 GPU", "list"),
        ("models: [{replicas: 2, gpus: 0}]", "2 replicas of 1 GPU need 2 GPUs", "repeat a GPU to share"),
        (
            "models: [{executor: tensorrt_llm, tp_size: 2, gpus: [0, 0]}]",
            "`models[0].gpus` lists a GPU twice in `0,0`",
            "give every rank",
        ),
        (
            "models: [{executor: tensorrt_llm, tp_size: 2, gpus: [MIG-a, MIG-b]}]",
            "`models[0].gpus` joins MIG slices in `MIG-a,MIG-b`",
            "one slice for each replica",
        ),
        ("models: [{}, {}]", "`models[0]` and `models[1]` are both named `inflight-demo`", "replicas"),
        (
            "models: [{phases: context}]",
            "`models[0].phases` is `context`, and no other entry of `models` has the rest of `inflight-demo`",
            "`generation`",
        ),
        (
            "models: [{phases: context}, {phases: context}]",
            "`models[0]` and `models[1]` are both named `inflight-demo`",
            "`phases`",
        ),
        (
            "models: [{kv_events_replay_port: 5558}]",
            "`models[0].kv_events_replay_port` needs `models[0].kv_events_port`",
            "set both",
        ),
        ("models: [{phases: context}, {}]", "are both named `inflight-demo`", "`phases`"),
        (
            "models: [{phases: context}, {phases: generation, executor: simulated}]",
            "`models[0].executor` is `reference` and `models[1].executor` is `simulated`, and both serve",
            "the same `executor`",
        ),
        ("models: [{path: /}]", "`models[0].path` is `/`, which names no model", "`models[0].name`"),
        ("models: [{executor: simulated, tp_size: 2}]", "have no effect with the executor", "leave them"),
        (
            "models: [{mode: orchestrator}]",
            "`models[0].mode` `orchestrator` needs the executor `tensorrt_llm`",
            "use `leader`",
        ),
        (
            "models: [{mode: orchestrator, executor: tensorrt_llm, tp_size: 2, nodes: 2}]",
            "starts its ranks on one machine, and `models[0].nodes` is `2`",
            "use `leader`",
        ),
        ("models: [{tp_size: 3, nodes: 2}]", "`models[0].nodes` is `2`, and", "divides the ranks"),
        (
            "models: [{mode: pytorch, executor: tensorrt_llm, tp_size: 2, nodes: 2}]\n"
            "mpi: {implementation: mpich}",
            "`models[0].mode` `pytorch` needs Open MPI across machines",
            "`openmpi`",
        ),
        ("models: [{}]\nmodels: [{}]", "line 2: the key `models` appears twice", "keep one"),
        ("models: [{name: a, name: b}]", "line 1: the key `name` appears twice", "keep one"),
        ("models: [\n}", "line 2: not valid YAML", "correct the line"),
        ("models: &a [*a]", "`models[0]` must be a mapping", "indent"),
    ],
)
def test_a_mistake_is_named_with_its_path_and_a_remedy(text: str, what: str, remedy: str) -> None:
    with pytest.raises(UserMistake) as raised:
        parse(text, BASE)
    assert what in raised.value.what
    assert remedy in (raised.value.remedy or "")


def test_worker_options_are_those_of_the_command() -> None:
    topology = parse("models: [{worker_options: {max_queue_requests: 1}}]", BASE)
    with pytest.raises(UserMistake) as raised:
        check_names(topology, ["max_queued_requests"], [])
    assert raised.value.what == "unknown key `models[0].worker_options.max_queue_requests`"
    assert raised.value.remedy == "did you mean `max_queued_requests`?"


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        (
            "gateways: {options: {max_body_byte: 1}}",
            "unknown key `gateways.options.max_body_byte`",
            "did you",
        ),
        (
            "gateways: {options: {port: 1}}",
            "`gateways.options.port` is set by",
            "use the key `gateways.port`",
        ),
        ("gateways: {options: {api-key: x}}", "`gateways.options.api_key` is set", "`gateways.api_key_file`"),
        (
            "gateways: {options: {worker: x}}",
            "`gateways.options.worker` is set by the topology",
            "leave it out",
        ),
    ],
)
def test_options_of_the_gateway_are_those_of_the_command(text: str, what: str, remedy: str) -> None:
    with pytest.raises(UserMistake) as raised:
        check_names(
            parse(f"models: [{{}}]\n{text}", BASE), [], ["max_body_bytes", "port", "worker", "api_key"]
        )
    assert what in raised.value.what
    assert remedy in (raised.value.remedy or "")


def test_a_workers_host_is_not_an_option() -> None:
    with pytest.raises(UserMistake, match=r"worker_options\.host` is set by the topology itself"):
        check_names(parse("models: [{worker_options: {host: 0.0.0.0}}]", BASE), ["host"], [])


def test_a_mistake_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("models: [{nam: x}]")
    with pytest.raises(UserMistake, match=rf"^{path}: unknown key `models\[0\].nam`"):
        read(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserMistake, match="is not UTF-8 text"):
        read(path)
    path.write_bytes(b"#" * (LARGEST_FILE_BYTES + 1))
    with pytest.raises(UserMistake, match="is larger than 1 MiB"):
        read(path)


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("0", (("0",),)),
        (3, (("3",),)),
        ("0,1;2,3", (("0", "1"), ("2", "3"))),
        ("0; 1", (("0",), ("1",))),
        ([0, 1], (("0", "1"),)),
        ([[0, 1], [2, 3]], (("0", "1"), ("2", "3"))),
        (["0,1", "2,3"], (("0", "1"), ("2", "3"))),
        ("GPU-5e0e-11,MIG-c6d4-f1", (("GPU-5e0e-11", "MIG-c6d4-f1"),)),
        ("MIG-GPU-5e0e/1/0", (("MIG-GPU-5e0e/1/0",),)),
    ],
)
def test_gpus_are_written_in_many_ways(written: object, groups: object) -> None:
    assert parse_groups(written) == groups


@pytest.mark.parametrize("written", ["", "0,", "0;;1", "-1", "all", 1.5, True, None, {}, [], [[]], [None]])
def test_other_gpus_are_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"a list of GPUs|not an index"):
        parse_groups(written)


def test_a_plain_list_is_dealt_out_in_order() -> None:
    model = Model(executor="tensorrt_llm", tp_size=2, replicas=2, gpus=(("0", "1", "2", "3"),))
    assert groups_of(model) == (("0", "1"), ("2", "3"))


def test_the_page_lists_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    head = page[: page.index("\n## `models[]`") + 1]
    made = head + reference()
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGE.write_text(made, encoding="utf-8")
    command = "UPDATE_SNAPSHOTS=1 pytest tests/python/test_topology_file.py"
    assert PAGE.read_text(encoding="utf-8") == made, f"run `{command}` and review the difference"
