"""KV cache blocks between two workers, over TCP.

`wire` has the messages, `sending` serves held blocks, `receiving` fetches them, `transceiver` puts both
together. Knows nothing of requests: which blocks, and what becomes of them, is `core.handover`'s.
"""
