"""A real Slurm on this machine: both daemons with a configuration of their own, for as long as a test lasts.

Owns the daemons and ports. Needs Debian's `slurmctld`, `slurmd` and `slurm-client`, and root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType

from support.processes import wait_until

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/controller.pid
SlurmdPidFile={directory}/daemon.pid
SlurmctldLogFile={directory}/controller.log
SlurmdLogFile={directory}/daemon.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
# A machine may have fewer cores than the tests have tasks.
SlurmdParameters=config_overrides
KillWait=5
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000
PartitionName=p Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why no Slurm can be started here."""
    for program in ("slurmctld", "slurmd", "sbatch", "srun", "scontrol"):
        if shutil.which(program) is None:
            return f"`{program}` is not installed: apt-get install slurmctld slurmd slurm-client"
    if os.geteuid() != 0:
        return "slurmd must run as root"
    try:
        socket.gethostbyname(_host())
    except OSError:
        return f"the host name `{_host()}` has no address"
    return None


class Slurm:
    """One machine, one partition."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("state", "spool"):
            (directory / name).mkdir()
        path = directory / "slurm.conf"
        ports = _free_ports()
        path.write_text(
            CONFIGURATION.format(host=_host(), controller=ports[0], daemon=ports[1], directory=directory)
        )
        self.environment = {**os.environ, "SLURM_CONF": str(path)}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        for daemon in ("slurmctld", "slurmd"):
            self._daemons.append(_start(daemon, self.environment))
        wait_until(
            "Slurm's machine is idle", lambda: "idle" in self.run("sinfo", "--noheader", "--format=%t")
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run("scancel", "--user=root")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *command: str) -> str:
        """What a client prints; empty where it fails."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.directory, capture_output=True, text=True, timeout=30
        )
        return done.stdout.strip()

    def submit(self, script: Path, *options: str) -> str:
        """The job's number."""
        job = self.run("sbatch", "--parsable", *options, str(script))
        assert job.isdigit(), (job, script.read_text())
        return job

    def state(self, job: str) -> str:
        """`RUNNING`, `COMPLETED`, `CANCELLED` and so on."""
        shown = self.run("scontrol", "show", "job", job)
        return shown.partition("JobState=")[2].partition(" ")[0]


def _start(daemon: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [daemon, "-D"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
