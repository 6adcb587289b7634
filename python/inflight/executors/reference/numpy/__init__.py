"""The small runner: a decoder on NumPy, to be read from end to end and compared with transformers.

    build    from a checkpoint to a runner      runner   an iteration
    steps    one rank's part of it              batch    the ragged rows of an iteration
    model    the forward pass                   arrays   every operation that costs
    experts  of a mixture, and their choice     latent   what is particular to attention on vectors
    cache    the storage of cache blocks        communicator  sums and gathers through MPI
    threads  how many NumPy uses

What is correct is decided here: `pytorch` computes the same faster. Importing this package does not import
NumPy, which takes its number of threads at that moment (`threads`).
"""
