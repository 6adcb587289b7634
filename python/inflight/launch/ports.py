"""The ports of gateways: whether they can be listened on, before anything slow is done, and the sockets that
listen on them, which outlive the gateways that accept from them.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence

from inflight.errors import UserMistake
from inflight.launch.plan import ProcessSpec

#: The options of a gateway with the ports that it listens on, in the order in which it takes sockets.
PORT_OPTIONS = ("--port", "--grpc-port", "--endpoint-picker-port")
#: Connections that wait to be accepted; the kernel takes its own limit where that is lower.
BACKLOG = 4096


class Listeners:
    """Sockets that listen for gateways. While a gateway is started again or another takes its place, clients
    that connect wait in the same queue.
    """

    def __init__(self) -> None:
        #: By host, and by port or, where any port will do, by process and option.
        self._sockets: dict[tuple[str, str], socket.socket] = {}

    def of(self, spec: ProcessSpec) -> list[int]:
        """The descriptors for a gateway, opened where they are not yet; none for a worker. Raises
        `UserMistake` where a port cannot be listened on.
        """
        found = []
        for host, port, option, key in _wanted(spec):
            if key not in self._sockets:
                self._sockets[key] = _listen(host, port, option)
            found.append(self._sockets[key].fileno())
        return found

    def check(self, spec: ProcessSpec) -> None:
        """Raises `UserMistake` where `of` would."""
        for host, port, option, key in _wanted(spec):
            if key not in self._sockets:
                _listen(host, port, option).close()

    def keep(self, specs: Sequence[ProcessSpec]) -> None:
        """Closes the sockets that none of these processes listens on."""
        wanted = {key for spec in specs for *_, key in _wanted(spec)}
        for key in self._sockets.keys() - wanted:
            self._sockets.pop(key).close()


def _wanted(spec: ProcessSpec) -> Iterator[tuple[str, int, str, tuple[str, str]]]:
    """Host, port, option and the socket's key."""
    if spec.arguments[0] != "gateway":
        return
    # Of an option that is given twice, the last one counts.
    given = dict(argument.partition("=")[::2] for argument in spec.arguments)
    host = given.get("--host", "127.0.0.1")
    for option in PORT_OPTIONS:
        port = given.get(option, "")
        if port.isdigit():
            name = spec.place or spec.name.partition(".")[0]
            yield host, int(port), option, (host, port if int(port) else f"{name} {option}")


def _listen(host: str, port: int, option: str) -> socket.socket:
    family, kind, protocol, address = _resolve(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        # As the gateway does.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserMistake(*_explain(host, port, option, error)) from error
    return listener


def require_free(host: str, port: int, option: str) -> None:
    """Raises `UserMistake` where listening on `host:port` would fail; `option` is the port's name.

    A port that somebody takes afterwards is found by the server itself. Port 0 is checked too: the
    host may not be ours.
    """
    family, kind, protocol, address = _resolve(host, port)
    with socket.socket(family, kind, protocol) as probe:
        # As the servers do: a port whose connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            # SO_REUSEADDR lets two sockets bind; only one of them may listen.
            probe.listen(1)
        except OSError as error:
            raise UserMistake(*_explain(host, port, option, error)) from error


def _resolve(host: str, port: int) -> tuple[int, int, int, tuple[object, ...]]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UserMistake(
            f"the host `{host}` is not known: {error.strerror}",
            "use `--host 127.0.0.1` for this machine alone, or `--host 0.0.0.0` for all interfaces",
        ) from error
    return family, kind, protocol, address


def _explain(host: str, port: int, option: str, error: OSError) -> tuple[str, str]:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port `{port}` on `{host}` is in use",
            f"choose another with `{option}` (0 picks a free port), or stop the program that uses it",
        )
    if error.errno == errno.EACCES:
        return f"port `{port}` needs privileges", f"choose one above 1023 with `{option}`"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"`{host}` is not an address of this machine", "choose another with `--host`"
    return (
        f"cannot listen on `{host}:{port}`: {error.strerror}",
        f"choose another with `--host` or `{option}`",
    )
