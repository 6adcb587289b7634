"""Finds out whether a port can be listened on, before anything slow is done. Binds, and lets go again."""

from __future__ import annotations

import errno
import socket

from inflight.errors import UserMistake


def require_free(host: str, port: int, option: str) -> None:
    """Raises `UserMistake` where listening on `host:port` would fail; `option` is the port's name.

    A port that somebody takes afterwards is found by the server itself. Port 0 is checked too: the
    host may not be ours.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UserMistake(
            f"the host `{host}` is not known: {error.strerror}",
            "use `--host 127.0.0.1` for this machine alone, or `--host 0.0.0.0` for all interfaces",
        ) from error
    with socket.socket(family, kind, protocol) as probe:
        # As the servers do: a port whose connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            # SO_REUSEADDR lets two sockets bind; only one of them may listen.
            probe.listen(1)
        except OSError as error:
            raise UserMistake(*_explain(host, port, option, error)) from error


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
