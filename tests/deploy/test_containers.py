"""The CPU image and the gateway's: built by buildah, run by podman without privileges and read-only.

Takes minutes, so it runs where `INFLIGHT_TEST_CONTAINERS` is 1 (`make check-containers`). No image registry
is needed: debootstrap makes the base of the CPU image, and the wheels come from `INFLIGHT_TEST_WHEELS`, a
directory with this package's and all that it needs. `INFLIGHT_TEST_BASE`: a tar of an earlier base. The
gateway's image has no base; its binary is `INFLIGHT_TEST_GATEWAY`, from `make gateway-static`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.http import get, post
from support.processes import START_S, wait_until
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Start

CONTAINERFILE = Path(__file__).parents[2] / "deploy" / "containers" / "Containerfile"
PROGRAMS = ("buildah", "podman", "crun", "debootstrap", "unshare")
MIRROR_PACKAGES = "python3,python3-venv,tini,ca-certificates"
#: For a machine without systemd and without cgroups of its own.
CONFIGURATION = """
[containers]
cgroups="disabled"
cgroupns="host"
default_ulimits=["nofile=4096:4096","nproc=4096:4096"]
log_driver="k8s-file"
[engine]
cgroup_manager="cgroupfs"
events_logger="file"
runtime="crun"
"""
#: podman looks at cgroups that it cannot use here.
ALONE = "mount --make-rprivate / && { umount /sys/fs/cgroup/unified 2>/dev/null || :; } && exec podman "
STORAGE = ("--storage-driver", "overlay")
NAME = "inflight-test"
GATEWAY = f"{NAME}-gateway"
PORT = 18000
HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges")
WHERE = ("--network=host", "--cgroups=disabled")
#: What clients of the container see.
ADDRESS = f"127.0.0.1:{PORT}"


def missing() -> str | None:
    """Why no container can be built and run here."""
    if os.environ.get("INFLIGHT_TEST_CONTAINERS") != "1":
        return "it takes minutes: `make check-containers` runs it"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"`{program}` is not installed: apt-get install {' '.join(PROGRAMS[:4])}"
    if os.geteuid() != 0:
        return "buildah and podman must run as root here"
    return None


REASON = missing()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(1200)]


def run(*command: str, check: bool = True, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    assert not check or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    directory = tmp_path_factory.mktemp("containers")
    made = Podman(directory)
    try:
        yield made
    finally:
        made("rm", "--force", NAME, GATEWAY, check=False)
        for image in (NAME, f"{NAME}-base", GATEWAY):
            run("buildah", *STORAGE, "rmi", image, check=False)


class Podman:
    """Both programs with a configuration of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = directory / "containers.conf"
        path.write_text(CONFIGURATION)
        self._environment = {"CONTAINERS_CONF": str(path)}

    def __call__(self, *arguments: str, check: bool = True) -> str:
        words = ' "$@"'
        command = ("unshare", "-m", "sh", "-c", ALONE + words, "podman", *STORAGE, *arguments)
        return run(*command, check=check, environment=self._environment)

    def build_gateway(self, binary: str) -> None:
        """The gateway's image."""
        context = self._directory / "gateway"
        (context / "dist").mkdir(parents=True)
        shutil.copy(binary, context / "dist" / "inflight-gateway")
        self._bud("--format", "docker", "-f", f"{CONTAINERFILE}.gateway", "-t", GATEWAY, str(context))

    def build(self, wheels: str) -> None:
        """The base and the CPU image."""
        base = self._directory / "base"
        base.mkdir()
        given = os.environ.get("INFLIGHT_TEST_BASE")
        if given:
            shutil.copy(given, base / "root.tar")
        else:
            root = self._directory / "root"
            run("debootstrap", "--variant=minbase", f"--include={MIRROR_PACKAGES}", "bookworm", str(root))
            run("tar", "-C", str(root), "-cf", str(base / "root.tar"), ".")
            shutil.rmtree(root)
        (base / "Containerfile").write_text("FROM scratch\nADD root.tar /\n")
        self._bud("-t", f"{NAME}-base", str(base))
        context = self._directory / "context"
        shutil.copytree(wheels, context / "dist")
        arguments = (f"BASE=localhost/{NAME}-base", "PIP_OPTIONS=--no-index")
        given_arguments = [word for argument in arguments for word in ("--build-arg", argument)]
        self._bud("--format", "docker", *given_arguments, "-f", str(CONTAINERFILE), "-t", NAME, str(context))

    def _bud(self, *arguments: str) -> None:
        run("buildah", *STORAGE, "bud", "--isolation", "chroot", *arguments, environment=self._environment)


def is_ready() -> bool:
    try:
        return get(ADDRESS, "/health/ready").status == 200
    except OSError:
        return False


def test_the_cpu_image_serves_without_privileges_and_stops_in_order(podman: Podman) -> None:
    wheels = os.environ.get("INFLIGHT_TEST_WHEELS")
    if not wheels:
        pytest.skip("`INFLIGHT_TEST_WHEELS` names no directory with wheels")
    podman.build(wheels)
    ports = (f"--port={PORT}", "--grpc-port=0", "--metrics-port=0")
    podman("run", "--detach", f"--name={NAME}", *WHERE, *HARDENED, f"localhost/{NAME}", "serve", *ports)
    wait_until("the container serves", is_ready, START_S)
    asked = {"model": "inflight-demo", "prompt": "Hi", "max_tokens": 4}
    assert post(ADDRESS, "/v1/completions", asked).status == 200

    def inside(script: str) -> str:
        return podman("exec", NAME, "sh", "-c", script)

    assert "uid=1000(inflight)" in inside("id")
    assert "Read-only file system" in inside("touch /somewhere; true")
    assert inside("cat /proc/1/comm").strip() == "tini"
    sbom = json.loads(inside("cat /usr/share/inflight/*.cyclonedx.json"))
    assert {"tokio", "tonic"} <= {component["name"] for component in sbom["components"]}
    packages = json.loads(inside("cat /usr/share/inflight/python-packages.json"))["installed"]
    assert "inflight-llm" in {package["metadata"]["name"] for package in packages}
    health = json.loads(podman("inspect", NAME))[0]["Config"]["Healthcheck"]["Test"]
    assert "/health/live" in health[-1]
    podman("stop", "--time=60", NAME)
    assert json.loads(podman("inspect", NAME))[0]["State"]["ExitCode"] == 0
    assert "stopping" in podman("logs", NAME)


def test_the_gateways_image_has_the_binary_alone_and_answers_chats(podman: Podman, start: Start) -> None:
    binary = os.environ.get("INFLIGHT_TEST_GATEWAY")
    if not binary:
        pytest.skip("`INFLIGHT_TEST_GATEWAY` names no binary of `make gateway-static`")
    podman.build_gateway(binary)
    ports = ("--grpc-port=0", "--metrics-port=0")
    worker = start("worker", *MODEL_ARGUMENTS, f"--served-model-name={MODEL_NAME}", *ports).address("grpc")
    # The word `gateway` may be given, as for the other images.
    arguments = ("gateway", f"--worker={worker}", f"--port={PORT}")
    image = f"localhost/{GATEWAY}"
    podman("run", "--detach", f"--name={GATEWAY}", *WHERE, *HARDENED, image, *arguments)
    wait_until("the container serves", is_ready, START_S)
    # A helper process, which is the same binary, renders the template.
    asked = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    answer = post(ADDRESS, "/v1/chat/completions", asked)
    assert answer.status == 200, answer.body
    assert "no such file" in podman("exec", GATEWAY, "sh", check=False).lower()
    # One layer, with the binary.
    found = json.loads(podman("inspect", "--type=image", image))[0]
    assert (found["Config"]["User"], len(found["RootFS"]["Layers"])) == ("1000", 1)
    podman("stop", "--time=60", GATEWAY)
    assert json.loads(podman("inspect", GATEWAY))[0]["State"]["ExitCode"] == 0
    assert "shutting down" in podman("logs", GATEWAY)
