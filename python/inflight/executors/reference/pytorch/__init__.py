"""The fast runner: the same engine over PyTorch, on a GPU or a CPU.

    build        from a checkpoint to a runner               device   which one, and whether it can be used
    runner       launch and collect                          steps    the device's half, CUDA graphs
    packing      an iteration's rows, in one upload          weights  a checkpoint's tensors, on the device
    model        the forward pass                            operations  every operation, in plain PyTorch
    kernels      the same in Triton the language             attention_kernels  its attention
    latent, latent_kernels  attention on vectors             softcap_kernels  caps of scores and logits
    linear_kernels, product_kernels, narrow_kernels          products, by how a matrix is stored
    expert_kernels  who computes what in a mixture           cuts     how products are cut into programs
    compressed   quantized matrices on the device            upload   files to a GPU, in parallel
    sampling     logits to tokens, in plain PyTorch          slots    the same by what the device keeps
    sampling_kernels, search_kernels, log_prob_kernels       the kernels of `slots`
    adapters     LoRA, several in one batch                  adapter_tables, adapter_kernels  the same at once
    communicator  sums and gathers over NCCL or gloo

Owns speed, and nothing else: what is right is `core.sampler`'s policy and `numpy`'s arithmetic, and
`tests/reference/pytorch` holds this package to them. How fast it is, and how to measure that, is in
docs/PERFORMANCE.md. Imported only when a device is chosen: PyTorch is optional, and takes seconds to import.
"""
