"""KV cache blocks between two workers: copied in the memory of one host, or sent over TCP.

Over TCP: `wire` has the messages, `sending` serves held blocks. On one host: `local` has the sockets and what
is said there, `lending` answers, `neighbors` keeps what is open. `receiving` fetches by either way, and
`transceiver` puts all together. Knows nothing of requests: which blocks, and what becomes of them, is
`core.handover`'s; how a cache is exported and opened is `core.block_store`'s.
"""
