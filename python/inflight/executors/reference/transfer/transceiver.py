"""Both ends of transfers, from the options: the port, the key, the buffers, the threads.

Owns what the options mean, and the sentences for what cannot be.
"""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

from inflight.executors.reference.core.block_store import BlockStore
from inflight.executors.reference.core.blocks import BlockPool
from inflight.executors.reference.core.fetches import Fetches, Transfers
from inflight.executors.reference.core.handover import Handover, Identity, is_loopback
from inflight.executors.reference.core.holds import Holds
from inflight.executors.reference.core.options import Options
from inflight.executors.reference.errors import OptionError
from inflight.model.files import open_regular

from . import local
from .buffers import Buffers
from .lending import Lender
from .neighbors import Neighbors
from .receiving import Fetcher
from .sending import Sender

_LOG = logging.getLogger("inflight.reference")

#: Connections that blocks come and go by at once, in each direction; others wait for one to be through.
_CONNECTIONS = 8

#: Of one direction, where no option says.
_BUFFER_BYTES = 64 << 20

#: A transfer that moves may take so many times what a silent one may.
_WHOLE = 10

_KEY_BYTES = range(16, 4097)


class Transceiver:
    """The two ends of one worker."""

    def __init__(self, sender: Sender, lender: Lender | None, fetcher: Fetcher, handover: Handover) -> None:
        self._sender, self._lender, self._fetcher = sender, lender, fetcher
        self.handover = handover
        handover.connect(fetcher, [sender.address])

    def close(self) -> None:
        """Ends both, without waiting."""
        self._sender.close()
        if self._lender is not None:
            self._lender.close()
        self._fetcher.close()


def open_transceiver(
    options: Options, pool: BlockPool, store: BlockStore, weights: str, vocab_size: int
) -> Transceiver:
    """Listens, and gives the engine its hand-over. Errors: `OptionError`."""
    key = _read_key(options.cache_transceiver_key_file)
    listener = _listen(options)
    host = listener.getsockname()[0]
    if not key and not is_loopback(host):
        listener.close()
        raise OptionError(
            f"option `cache_transceiver_address` is `{options.cache_transceiver_address}` without a key",
            "pass `cache_transceiver_key_file`, or an address of this machine alone such as 127.0.0.1:0",
        )
    wait_s = options.kv_transfer_timeout_ms / 1e3
    tokens = options.max_tokens_in_buffer
    blocks = _BUFFER_BYTES // store.block_bytes if tokens is None else tokens // pool.tokens_per_block
    blocks = max(1, blocks // _CONNECTIONS)
    holds = Holds(pool, wait_s, time.monotonic)
    transfers = Transfers()
    fetches = Fetches(pool, transfers, wait_s, time.monotonic)
    handover = Handover(pool, store, holds, fetches, transfers, Identity(weights, vocab_size, key))
    sender = Sender(
        listener,
        holds,
        store,
        Buffers(store, blocks, _CONNECTIONS),
        key,
        wait_s,
        _WHOLE * wait_s,
    )
    lender, neighbors = None, None
    if options.cache_transceiver_backend == "default" and local.is_supported():
        lender = _lend(sender.address, holds, store, key, wait_s)
        neighbors = Neighbors(store, key, wait_s)
    fetcher = Fetcher(
        fetches.finish,
        store,
        Buffers(store, blocks, _CONNECTIONS),
        key,
        wait_s,
        _WHOLE * wait_s,
        neighbors,
        threads=_CONNECTIONS,
    )
    return Transceiver(sender, lender, fetcher, handover)


def _lend(
    address: tuple[str, int], holds: Holds, store: BlockStore, key: bytes, wait_s: float
) -> Lender | None:
    """Lets workers of this host read the cache in place, where it can be read by them."""
    export = store.export()
    if export is None:
        return None
    try:
        listener = local.listen(address)
    except OSError as error:
        _LOG.warning("kv cache not offered to workers of this host reason=%r", str(error))
        return None
    return Lender(listener, holds, export, store.block_bytes, key, wait_s, _WHOLE * wait_s)


def _listen(options: Options) -> socket.socket:
    given = options.cache_transceiver_address
    host, _, port = given.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise OptionError(
            f"option `cache_transceiver_address` must be HOST:PORT, got `{given}`",
            "pass an address of this machine that other workers reach, such as 10.0.0.1:8003",
        )
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise OptionError(
            f"option `cache_transceiver_address`: cannot listen at `{given}`: {error.strerror}",
            "pass a free port of an address of this machine",
        ) from error
    if listener.getsockname()[0] in ("0.0.0.0", "::"):
        listener.close()
        raise OptionError(
            f"option `cache_transceiver_address` is `{given}`, which no other worker can connect to",
            "pass the address that other workers reach this machine by",
        )
    return listener


def _read_key(path: str | None) -> bytes:
    if path is None:
        return b""
    try:
        with open_regular(Path(path)) as file:
            key = file.read(_KEY_BYTES.stop).strip()
    except OSError as error:
        raise OptionError(
            f"option `cache_transceiver_key_file`: `{path}` cannot be read: {error.strerror}",
            "pass a readable file",
        ) from error
    if len(key) not in _KEY_BYTES:
        raise OptionError(
            f"option `cache_transceiver_key_file`: `{path}` has {len(key)} bytes, and a key has"
            f" {_KEY_BYTES.start} to {_KEY_BYTES.stop - 1}",
            "write a random text into it, such as that of `openssl rand -hex 32`",
        )
    return key
