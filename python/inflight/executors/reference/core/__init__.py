"""In-flight batching without a model or a device: who runs, where their cache lies, and what a token means.

    engine     the order of an iteration        iteration  what one did
    intake     a request comes                  requests   those in flight, and what a token means
    branches   tokens that the host chooses     reports    what is kept of a token in addition
    runner     the seam: what is computed       arrival    what a request begins with
    admission  one request's check              extras     what a request's tensors ask
    refusal    why a request is not served      options    sizes and their defaults
    queue      who waits, in order              scheduler  which sequences run next
    planner    who runs next, and where         sequence   a request in flight
    lanes      sequences in columns             blocks     which cache block belongs to whom
    reuse      what cached blocks hold          eviction   which block goes first
    window     what of a cache is still read    adapters   those that are loaded, and their cache
    sampler    the sampling policy              probabilities  softmax, and the best of a row
    guides     answers that fit a grammar       masks      what such an answer allows next
    structural_tags, schemas  parts of a guide  prompt_tuning  embeddings that a request brings
    drafts     guesses of what comes next       draft_model    those of a smaller model
    beams      a search with several beams      stop       whether a sequence ends
    pooling    hidden states to an embedding    log_probs  what is reported of a token
    seeing     files of images to pixels        images     a prompt that has some
    image_cache  what they became
    handover   prompts for and from other workers  context_phase  the bytes between the two
    holds      blocks that wait for others      fetches    blocks on their way here
    block_store  the seam: blocks as bytes
    rows       columns of a response            metrics    what a sequence took
    statistics what an iteration did

NumPy appears here as columns of numbers and where the host chooses by logits that it asked for (beams, draft
tokens). `sampler` states the policy that every runner follows. Knows nothing of runners' insides.
"""
