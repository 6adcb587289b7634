"""What of a topology is warned of, and what is not."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.launch import cautions as module
from inflight.launch import run
from inflight.launch.cautions import cautions
from inflight.launch.topology import Gateways, Model, Topology

MODEL = Model(name="tiny", path="/models/tiny", executor="simulated", device="cpu")


@pytest.mark.parametrize(
    ("gateways", "environment", "is_warned"),
    [
        (Gateways(host="0.0.0.0"), {}, True),
        (Gateways(host="[::]"), {}, True),
        (Gateways(host="10.0.0.5"), {}, True),
        (Gateways(host="serving.example"), {}, True),
        (Gateways(), {}, False),
        (Gateways(host="127.0.0.9"), {}, False),
        (Gateways(host="[::1]"), {}, False),
        (Gateways(host="localhost"), {}, False),
        (Gateways(host="0.0.0.0", replicas=0), {}, False),
        (Gateways(host="0.0.0.0"), {"INFLIGHT_API_KEY": "k"}, False),
        (Gateways(host="0.0.0.0", api_key_file="keys"), {}, False),
        (Gateways(host="0.0.0.0", options=(("api_key", "k"),)), {}, False),
        (Gateways(host="0.0.0.0", options=(("tls-client-ca", "ca.pem"),)), {}, False),
        (Gateways(host="0.0.0.0", options=(("threads", "2"),)), {}, True),
    ],
)
def test_a_gateway_for_other_machines_asks_for_a_key(
    gateways: Gateways, environment: dict[str, str], is_warned: bool
) -> None:
    found = list(cautions(Topology(models=(MODEL,), gateways=gateways), environment))
    assert len(found) == is_warned
    assert all(f"`gateways.host` is `{gateways.host}` and no key is asked for" in one for one in found)


def test_gpus_are_of_a_machine_that_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Topology(
        models=(MODEL, Model(name="b", path="b", executor="simulated", device="cpu", gpus=(("0",),)))
    )
    monkeypatch.setattr(module, "has_gpu", lambda: False)
    assert [one.partition(",")[0] for one in cautions(named, {})] == ["`models[1].gpus` lists GPUs"]
    monkeypatch.setattr(module, "has_gpu", lambda: True)
    assert list(cautions(named, {})) == []


def test_serve_warns_in_terms_of_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_gpu", lambda: False)
    monkeypatch.setattr(run, "supervise", lambda *_, **__: 0)
    command = ["serve", "--host=0.0.0.0", "--gpus=0", "--port=0", "--grpc-port=0", "--metrics-port=0"]
    result = CliRunner().invoke(inflight, command, catch_exceptions=False)
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first.startswith("warning: `--host` is `0.0.0.0` and no key is asked for: ")
    assert first.endswith("set `--api-key-file`")
    assert second.startswith("warning: `--gpus` lists GPUs, and this machine shows none")
