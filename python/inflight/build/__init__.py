"""`inflight build`: from a Hugging Face checkpoint to a directory that a worker serves.

    pipeline     the build from top to bottom
    options      every option, declared once             plan      what to do, as data (pure)
    checks       problems found before it starts (pure)      steps     what plans are made of (pure)
    families     architectures that each runtime takes   run       a plan's steps; one rename at the end
    runtimes     the steps of each runtime               execute   one step: a child process, or a function
    examples     TensorRT-LLM's example scripts          api_call  the child that calls TensorRT-LLM
    named_files  files that options name                 files     tokenizer, configs and links of a result
    inspect      what a directory is and needs           record    what goes into `inflight.json`

Nothing here imports TensorRT-LLM: its versions come from package metadata, its calls run in a child process.
"""
