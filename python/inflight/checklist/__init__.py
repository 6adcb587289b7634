"""`inflight doctor --tensorrt-llm`: uses each feature of an executor once, on a user's machine and model.

    outcome    what may come of a check        check    what a check is, and their order
    subject    one executor under test: requests in, whole answers out, each in bounded time
    material   what requests bring: adapters, an image, tensors
    checks     the checks, by topic
    loads      with which options the executor is started, and which checks belong to which start
    child      the process that has the executor     run    the process that starts it and bounds it
    page       what came of it, as JSON and Markdown

Knows executors by their protocol and their capabilities alone; `loads` has what is TensorRT-LLM's. Everything
that is asked is fixed here, so that a report contains no prompts of users.
"""
