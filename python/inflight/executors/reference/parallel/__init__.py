"""One model over several ranks: tensor parallelism, as Megatron-LM and TensorRT-LLM split a decoder.

    split         which part of each tensor a rank holds; what cannot be split
    communicator  sums and gathers over the ranks: the seam; MPI for NumPy arrays
    channel       rank 0's connections to the others: what to compute, and who is gone
    team          a rank's place among the others, from the launch to the end

Rank 0 has the engine: it schedules, samples and answers. Each call that it makes of the model or the cache
goes to the other ranks first, which make the same call on their part of both.
"""
