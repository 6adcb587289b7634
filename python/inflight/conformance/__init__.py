"""Whether a server keeps the OpenAI and Anthropic contracts, asked through the real SDKs.

`check` says what a check is and runs them, `target` is the server that they ask, `checks` holds them by
topic, `node` those that Node runs, `page` writes what came of it. Works against any server; nothing here
knows that ours exists.
"""
