"""A model as its checkpoint describes it: what every runner loads, whatever it computes with.

    config    config.json to values             families  what each model family differs in
    tensors   names and shapes of weights       weights   safetensors to float32
    layers    weights, gathered for the pass    rope      the angles of the rotary embedding
    latent    attention on vectors (DeepSeek)   mixture   which experts a token gets (DeepSeek)
    yarn      rotary embeddings, stretched      longrope  the same, with a factor for each pair
    split     which part of each a rank holds   communicator  sums and gathers over ranks
    lora      what an adapter changes           peft      adapters as files
    array_types  NumPy's arrays by their numbers

Knows nothing of requests, caches or devices, and computes nothing but weights.
"""
