"""What `inflight launch --render` writes, file by file; `UPDATE_SNAPSHOTS=1` rewrites `snapshots`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from inflight.errors import UserMistake
from inflight.launch.render import PLANES, render
from inflight.launch.render.slurm import seat
from inflight.launch.topology import Topology
from inflight.launch.topology_file import parse

yaml: Any = import_module("yaml")

SNAPSHOTS = Path(__file__).with_name("snapshots")

ONE = "models: [{executor: reference}]"
MANY = """
models:
  - {path: /models/qwen3-0.6b, replicas: 2, gpus: "0;MIG-3b6e1b3c", environment: {LEVEL: 100% $HOME}}
  - name: Meta/Llama 3
    path: /models/llama-3-70b
    executor: tensorrt_llm
    tp_size: 2
    gpus: 2,3
    executor_options: {medusa_choices: '{{0}, {0, 0}}'}
gateways: {replicas: 2, port: 9000, host: 0.0.0.0, api_key_file: /etc/inflight/api-keys}
restart: {most: 3}
drain: {gateway_s: 60, worker_s: 45}
deploy:
  gateway_image: inflight-gateway:0.1.0
  discovery: endpointslices
  namespace: llm
  model_volume: models
  api_key_secret: inflight
  partition: gpu
  time_limit: '24:00:00'
"""
SPREAD = """
models:
  - {path: /shared/llama-405b, executor: tensorrt_llm, tp_size: 8, pp_size: 2, nodes: 2}
  - {name: small, path: /shared/qwen3, executor: tensorrt_llm, replicas: 2}
  - {name: torch, path: /shared/mixtral, executor: tensorrt_llm, tp_size: 4, mode: pytorch}
deploy: {gateway_inside: false, gpus_per_node: 4, executable: /shared/inflight/bin/inflight}
"""
#: Prompts and answers on different workers.
APART = """
models:
  - {name: qwen, path: /models/qwen, phases: context}
  - {name: qwen, path: /models/qwen, phases: generation, replicas: 2, executor_options: {dtype: float32}}
deploy:
  model_volume: models
  cache_key_secret: cache
  cache_key_file: /shared/kv.key
  gpus_per_node: 1
"""
WITHOUT_GPUS = {"one": ONE, "many": MANY, "apart": APART}


def described(text: str) -> Topology:
    return parse(text, Path("/srv"))


#: The same on three of Slurm's machines.
ON_MACHINES = APART.replace("executor_options", "gpus: 0;0, executor_options").replace(
    "phases: context", "phases: context, gpus: 0"
)
CASES = [(name, plane) for name in WITHOUT_GPUS for plane in PLANES] + [("spread", "slurm")]


@pytest.mark.parametrize(("name", "plane"), CASES)
def test_every_file_is_as_the_snapshot(name: str, plane: str) -> None:
    text = SPREAD.replace("tp_size: 8", "tp_size: 4") if name == "spread" else WITHOUT_GPUS[name]
    written = render(described(text), plane)
    directory = SNAPSHOTS / plane / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for file, content in written.items():
            (directory / file).write_text(content, encoding="utf-8")
    kept = {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}
    assert kept == written, (
        "run `UPDATE_SNAPSHOTS=1 pytest tests/deploy/test_render.py` and review the difference"
    )


def test_slurm_fills_one_machine_after_another() -> None:
    seats = seat(described(SPREAD.replace("tp_size: 8", "tp_size: 4")))
    assert [(one.worker.name, one.node, one.gpus) for one in seats] == [
        ("worker-llama-405b", 0, (0, 1, 2, 3)),
        ("worker-small-0", 2, (0,)),
        ("worker-small-1", 2, (1,)),
        ("worker-torch", 3, (0, 1, 2, 3)),
    ]


@pytest.mark.parametrize(
    ("text", "plane", "message"),
    [
        ("models: [{grpc_port: 0}]", "slurm", "`models[0].grpc_port` is `0`"),
        ("models: [{kv_events_port: 0}]", "compose", "`models[0].kv_events_port` is `0`"),
        ("models: [{}]\ngateways: {port: 0}", "compose", "`gateways.port` is `0`"),
        (
            APART.replace("cache_key_secret: cache", ""),
            "kubernetes",
            "`deploy.cache_key_secret` is not set",
        ),
        (
            APART.replace("cache_key_file: /shared/kv.key", ""),
            "compose",
            "`deploy.cache_key_file` is not set",
        ),
        (
            ON_MACHINES.replace("cache_key_file: /shared/kv.key", ""),
            "slurm",
            "from `3` machines, and `deploy.cache_key_file` is not set",
        ),
        (SPREAD, "slurm", "needs `8` GPUs on a machine, and `deploy.gpus_per_node` is `4`"),
        (SPREAD, "compose", "spans `2` machines"),
        (SPREAD + "\nmpi: {hostfile: h}", "systemd", "spans `2` machines"),
        (SPREAD, "kubernetes", "`models[0].nodes` is `2`"),
        ("models: [{path: /models/a}]", "kubernetes", "`deploy.model_volume` is not set"),
        ('models: [{}]\ngateways: {api_key_file: "k\\\\"}', "systemd", "ends with a backslash"),
        ("models: [{path: a}]\ndeploy: {model_volume: m}", "kubernetes", "not below `deploy.model_mount`"),
    ],
)
def test_what_a_plane_cannot_run_is_refused(text: str, plane: str, message: str) -> None:
    with pytest.raises(UserMistake) as raised:
        render(described(text), plane)
    assert message in raised.value.what


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('models: [{}]\ndeploy: {user: "a\\nExecStartPre=/bin/id"}', "deploy.user"),
        ('models: [{}]\ndeploy: {partition: "a\\n#SBATCH --wrap=id"}', "deploy.partition"),
        ('models: [{}]\ndeploy: {partition: "a --wrap=id"}', "deploy.partition"),
        ('models: [{}]\ndeploy: {time_limit: "1:00 --uid=0"}', "deploy.time_limit"),
        ('models: [{}]\ndeploy: {image: "a\\nb"}', "deploy.image"),
        ('models: [{name: "a\\rb"}]', "models[0].name"),
        ('models: [{}]\ngateways: {api_key_file: "k\\nb"}', "gateways.api_key_file"),
        ('models: [{environment: {"A=x\\nB": y}}]', "models[0].environment"),
    ],
)
def test_text_that_would_become_a_line_or_an_option_is_refused(text: str, key: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(f"`{key}`")):
        described(text)


def test_systemd_reads_a_name_and_a_value_as_they_are_written() -> None:
    written = render(
        described('models: [{name: "a\\\\", environment: {A: "x\\ny"}}]\ngateways: {api_key_file: "/a%b"}'),
        "systemd",
    )
    worker = written["inflight-worker.service"].splitlines()
    (description,) = [line for line in worker if line.startswith("Description=")]
    # A line that ends with an odd number of backslashes continues on the next one.
    assert description.endswith("a" + "\\" * 2)
    assert 'Environment="A=x\\ny"' in worker
    assert "LoadCredential=api-keys:/a%%b" in written["inflight-gateway.service"]


def test_kubernetes_puts_no_variables_into_what_a_topology_says() -> None:
    text = 'models: [{name: "$(HOME)$$", environment: {A: "$(B)"}}]\ngateways: {environment: {C: "$(D)"}}'
    written = "".join(render(described(text), "kubernetes").values())
    assert "--served-model-name=$$(HOME)$$$$" in written
    assert "value: $$(B)" in written
    assert "value: $$(D)" in written


def test_blocks_travel_between_containers_and_machines() -> None:
    """Where all workers are on one host, its loopback addresses do."""
    option = "--executor-option=cache_transceiver_"
    address, key = f"{option}address=", f"{option}key_file="
    [compose] = render(described(APART), "compose").values()
    services = yaml.safe_load(compose)["services"]
    for name in ("worker-qwen-context", "worker-qwen-generation-0", "worker-qwen-generation-1"):
        assert f"{address}{name}:8010" in services[name]["command"]
        assert f"{key}/run/secrets/cache-key" in services[name]["command"]
        assert services[name]["secrets"] == ["cache-key"]
    manifests = render(described(APART), "kubernetes")
    for phases in ("context", "generation"):
        assert f"{address}$(POD_IP):8010\n" in manifests[f"worker-qwen-{phases}.yaml"]
    assert "port: 8010" in manifests["network.yaml"]
    for plane in ("systemd", "slurm"):
        for text in render(described(APART), plane).values():
            assert address not in text
    [script] = render(described(ON_MACHINES), "slurm").values()
    for number in range(3):
        assert f'"{address}${{nodes[{number}]}}:0" &' in script
    assert script.count(f"{key}/shared/kv.key") == 3


def test_listeners_reach_what_each_worker_publishes() -> None:
    text = (
        "models: [{name: a, replicas: 2, kv_events_port: 6000, kv_events_replay_port: 6001,"
        " kv_events_topic: 'kv@{worker}@a'}]"
    )
    [compose] = render(described(text), "compose").values()
    service = yaml.safe_load(compose)["services"]["worker-1"]
    topic = "--kv-events-topic=kv@worker-1@a"
    assert {"--kv-events-port=5557", "--kv-events-replay-port=5558", topic} <= set(service["command"])
    assert service["ports"] == ["127.0.0.1:6002:5557", "127.0.0.1:6003:5558"]
    manifests = render(described(text), "kubernetes")
    service, workers = yaml.safe_load_all(manifests["worker.yaml"])
    names = [port["name"] for port in service["spec"]["ports"]]
    assert names == ["grpc", "metrics", "kv-events", "kv-events-past"]
    container = workers["spec"]["template"]["spec"]["containers"][0]
    assert "--kv-events-topic=kv@$(POD_IP):8001@a" in container["args"]
    assert [port["containerPort"] for port in container["ports"]] == [8001, 8002, 5557, 5558]
    assert [one for one in container["env"] if one["name"] == "POD_IP"]
    policy = yaml.safe_load(manifests["network.yaml"])
    assert policy["spec"]["ingress"][-1] == {
        "from": [{"podSelector": {"matchLabels": {"inflight-kv-events": "listener"}}}],
        "ports": [{"port": 5557}, {"port": 5558}],
    }
    for plane in ("systemd", "slurm"):
        written = "".join(render(described(text), plane).values())
        assert "--kv-events-port=6002 --kv-events-replay-port=6003 --kv-events-topic=kv@worker-1@a" in (
            written.replace('"', "").replace("'", "")
        )


def test_the_workers_of_tensorrt_llm_reach_each_other_on_any_port() -> None:
    text = APART.replace("phases:", "executor: tensorrt_llm, phases:")
    policy = yaml.safe_load(render(described(text), "kubernetes")["network.yaml"])
    assert [rule.get("ports") for rule in policy["spec"]["ingress"]] == [
        [{"port": 8001}],
        [{"port": 8002}],
        None,
    ]


def test_no_key_is_in_any_file() -> None:
    for plane in PLANES:
        assert not any("INFLIGHT_API_KEY" in text for text in render(described(MANY), plane).values())


@pytest.mark.skipif(shutil.which("bash") is None, reason="`bash` is not installed")
@pytest.mark.parametrize("name", ["one", "many", "spread"])
def test_the_batch_script_is_valid_shell(name: str) -> None:
    script = str(SNAPSHOTS / "slurm" / name / "inflight.sbatch")
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") is not None:
        subprocess.run(["shellcheck", "--severity=warning", script], check=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="`systemd-analyze` is not installed")
@pytest.mark.parametrize("name", list(WITHOUT_GPUS))
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    # It wants the programs to be there.
    text = WITHOUT_GPUS[name].replace("deploy:\n", "deploy:\n  executable: /bin/true\n")
    text = text if "deploy:" in text else f"{text}\ndeploy: {{executable: /bin/true}}"
    for file, content in render(described(text.replace("tp_size: 2", "pp_size: 2")), "systemd").items():
        (tmp_path / file).write_text(content.replace("env mpirun ", "env true "))
    units = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60
    )
    ours = [line for line in done.stderr.splitlines() if "inflight" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def objects(name: str) -> list[dict[str, Any]]:
    texts = [path.read_text() for path in sorted((SNAPSHOTS / "kubernetes" / name).iterdir())]
    return [one for text in texts for one in yaml.safe_load_all(text)]


@pytest.mark.parametrize("name", list(WITHOUT_GPUS))
def test_kubernetes_accepts_the_manifests(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for one in objects(name):
        validate.validate(one, "1.37", strict=True)


@pytest.mark.parametrize("name", list(WITHOUT_GPUS))
def test_selectors_select_the_pods_they_are_meant_for(name: str) -> None:
    made: dict[tuple[str, str], Any] = {
        (one["kind"], one["metadata"]["name"]): one.get("spec") for one in objects(name)
    }
    account = made["Deployment", "inflight-gateway"]["template"]["spec"].get("serviceAccountName")
    assert account is None or {("ServiceAccount", account), ("RoleBinding", account)} <= made.keys()
    for kind, full in made:
        if kind in ("StatefulSet", "Deployment"):
            labels = made[kind, full]["template"]["metadata"]["labels"]
            assert made[kind, full]["selector"]["matchLabels"].items() <= labels.items()
            assert made["Service", full]["selector"].items() <= labels.items()
            is_worker = (
                made["NetworkPolicy", "inflight-worker"]["podSelector"]["matchLabels"].items()
                <= labels.items()
            )
            assert is_worker == (kind == "StatefulSet")
    arguments = made["Deployment", "inflight-gateway"]["template"]["spec"]["containers"][0]["args"]
    found_by = "--worker-dns=" if account is None else "--worker-service="
    services = [one.partition("=")[2] for one in arguments if one.startswith(found_by)]
    workers = {full for kind, full in made if kind == "StatefulSet"}
    assert {address.partition(":")[0] for address in services} == workers
    for full in workers:
        assert made["StatefulSet", full]["serviceName"] == full
        assert made["Service", full]["clusterIP"] == "None"


def compose_files() -> list[Path]:
    deploy = Path(__file__).parents[2] / "deploy"
    kept = [*deploy.glob("compose/*.yaml"), deploy / "monitoring" / "compose.yaml"]
    return [*kept, *SNAPSHOTS.glob("compose/*/compose.yaml")]


def test_compose_files_fit_the_specification() -> None:
    assert len(compose_files()) >= 5
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, *map(str, compose_files())], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_puts_no_variables_into_what_a_topology_says() -> None:
    [text] = render(described(MANY), "compose").values()
    worker = yaml.safe_load(text)["services"]["worker-qwen3-0-6b-0"]
    assert worker["environment"]["LEVEL"] == "100% $$HOME"
