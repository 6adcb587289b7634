"""From a Hugging Face checkpoint to a directory that a worker serves.

    options      every option, declared once             plan       what to do, as data (pure)
    checkpoint   what a checkpoint directory holds       tensorrt   steps for an engine (pure)
    shards       weight files by their headers           pytorch    steps for the PyTorch runtime (pure)
    families     architectures that each runtime takes   reference  weights for the reference executor
    installed    versions, GPUs, example scripts         files      tokenizer, configs and links of a result
    consistency  whether all that fits together (pure)   run        a plan's steps; one rename at the end
    steps        what plans are made of (pure)           execute    one step: a child process, or our function
    manifest     inflight.json and its check             api_call   the child that calls TensorRT-LLM
    sizes        bytes of weights and cache (pure)       inspect    what a directory is and needs

Nothing here imports TensorRT-LLM: its versions come from package metadata, its calls run in a child.
"""
