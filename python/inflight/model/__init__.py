"""Models on disk: what a directory holds, read without loading a weight. Everything else builds on this.

    files       names of files, JSON in and out       checkpoint  a Hugging Face checkpoint directory
    config      `config.json`, parsed                 shards      safetensors headers, fingerprints
    tokenizer   tokenizer files and whether they load  manifest    `inflight.json` and its check
    foreign     engines that others built             memory      bytes of weights and KV cache (pure)
    runtimes    what a model can be built for         speculation who may draft tokens
    latent      sizes of attention on vectors         quantization  how matrices are stored

Imports neither NumPy nor TensorRT-LLM, and knows neither builds nor executors.
"""
