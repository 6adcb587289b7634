"""The reference executor's second implementation: the same engine over PyTorch, on a GPU or a CPU.

    device       which device, and whether it can be used    model    the forward pass
    weights      a checkpoint's tensors, on the device       sampling logits to tokens
    operations   every operation, in plain PyTorch           inputs   an iteration's rows, in one upload
    kernels      the same in Triton the language             runner   launch, CUDA graphs, collect
    attention_kernels  its attention                         adapters LoRA, several in one batch
    slots        sampling by what the device keeps           sampling_kernels, search_kernels, told_kernels

Imported only when a device is chosen: PyTorch is optional, and importing it takes seconds.
"""
