"""What the demo model knows about serving language models: one record a concept.

The records have the form of `concepts_learning`. Data only.
"""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off
from .concepts_learning import Record

SERVING: tuple[Record, ...] = (
    (("a GPU", "GPUs", "a graphics card", "the GPU", "graphics processing units"),
     "A GPU, or graphics processing unit, is a processor that does thousands of simple calculations at the "
     "same time.",
     "It was made for graphics, but neural networks need the same kind of arithmetic: large matrix products. "
     "Its fast memory is what limits how many users a language model can serve.",
     "NVIDIA's H100 and H200 are well known GPUs for language models."),
    (("a CPU", "CPUs", "a central processing unit", "the CPU"),
     "A CPU, or central processing unit, is the general processor of a computer.",
     "It has a few fast cores that can do any kind of work, one step after another. "
     "For large models a GPU is much faster, but a tiny model like me runs well on a CPU.",
     "Inflight's reference executor runs on the CPU with NumPy."),
    (("CUDA", "the CUDA toolkit", "CUDA programming"),
     "CUDA is NVIDIA's platform for running general programs on GPUs.",
     "Programs start kernels, which are functions that run in thousands of threads at once. "
     "PyTorch, TensorRT and TensorRT-LLM are built on it.",
     "CUDA graphs record many kernels and start them together, which saves time in each step."),
    (("a KV cache", "the KV cache", "KV caching", "KV cache", "the key-value cache", "kv-cache"),
     "The KV cache keeps the attention keys and values of all earlier tokens, so that they need not be "
     "computed again.",
     "It makes each new token cheap, but it takes a lot of GPU memory that grows with the length of the "
     "text. "
     "For this reason it is usually divided into blocks, which is called paged attention.",
     "How many requests fit at once is mostly decided by the size of the KV cache."),
    (("in-flight batching", "inflight batching", "continuous batching", "in flight batching",
      "iteration-level batching"),
     "In-flight batching, also called continuous batching, lets requests join and leave a running batch "
     "after every step.",
     "A finished request makes room at once, and a new one does not wait for the whole batch to end. "
     "This keeps the GPU busy and gives much higher throughput.",
     "TensorRT-LLM calls it in-flight batching, and the name Inflight comes from it."),
    (("batching", "a batch", "static batching", "batch size", "batches"),
     "Batching means that a model processes several requests together.",
     "The weights are read from memory once and used for all of them, so the total throughput rises. "
     "With in-flight batching, requests can join and leave at every step.",
     "A larger batch gives more tokens per second in total, but each request becomes a little slower."),
    (("paged attention", "PagedAttention", "a paged KV cache", "the paged KV cache"),
     "Paged attention stores the KV cache in small blocks of fixed size, like the pages of an operating "
     "system.",
     "A sequence takes a new block only when it needs one, so hardly any memory is wasted. "
     "Blocks can also be shared between requests that begin with the same prompt.",
     "A typical block holds 32 or 64 tokens."),
    (("prefix caching", "KV cache reuse", "prompt caching", "prefix cache"),
     "Prefix caching reuses the KV cache of a prompt's beginning when another request starts with the same "
     "tokens.",
     "Long system prompts then have to be computed only once. "
     "The first token of the answer comes much sooner.",
     "The usage of a response can report how many prompt tokens came from the cache."),
    (("chunked prefill", "chunked context", "prefill chunking"),
     "Chunked prefill processes a long prompt in pieces instead of all at once.",
     "Between the pieces the other requests get their next tokens, so a long prompt does not make them wait. "
     "TensorRT-LLM calls it chunked context.",
     "It trades a slightly later first token for smooth streams."),
    (("prefill", "the prefill phase", "the context phase"),
     "Prefill is the first phase of generation, in which the model reads the whole prompt at once and fills "
     "the KV cache.",
     "It is limited by arithmetic, because many tokens are processed together. "
     "Its length decides the time to the first token.",
     "TensorRT-LLM calls it the context phase."),
    (("decode", "the decode phase", "the generation phase", "decoding in an LLM"),
     "Decode is the second phase of generation, in which the model writes one token per step.",
     "It is limited by memory speed, because all the weights are read for each step. "
     "Batching many requests makes it efficient.",
     "TensorRT-LLM calls it the generation phase."),
    (("speculative decoding", "speculative sampling", "a draft model"),
     "Speculative decoding lets a small fast model guess several tokens that the large model then checks in "
     "one step.",
     "Right guesses are kept, so several tokens come out of one step, and the result stays the same. "
     "Medusa and EAGLE are related methods.",
     "It helps most when few requests run at once."),
    (("TensorRT", "NVIDIA TensorRT", "what TensorRT does"),
     "TensorRT is NVIDIA's compiler and runtime for fast inference of neural networks on GPUs.",
     "It fuses layers, picks the fastest kernels and supports low precisions such as FP8 and INT8. "
     "The compiled result is called an engine.",
     "TensorRT-LLM is the library for large language models that grew out of it."),
    (("TensorRT-LLM", "TensorRT LLM", "TRT-LLM", "trtllm"),
     "TensorRT-LLM is NVIDIA's open library for running large language models fast on its GPUs.",
     "It offers in-flight batching, a paged KV cache, quantization, tensor parallelism and speculative "
     "decoding. "
     "Inflight uses it as its main executor.",
     "Models run either as compiled engines or through its PyTorch runtime."),
    (("a TensorRT engine", "an engine", "an engine file", "engines", "a compiled engine"),
     "An engine is a model that was compiled for one kind of GPU, with fixed limits such as the largest "
     "batch.",
     "It is built from a checkpoint by the command trtllm-build. "
     "The executor loads it and generates tokens with it.",
     "Engines have to be built again for another kind of GPU or another version of TensorRT-LLM."),
    (("Triton", "Triton Inference Server", "NVIDIA Triton", "the Triton server", "tritonserver"),
     "Triton Inference Server is NVIDIA's server for models of many frameworks.",
     "Clients reach it with the KServe v2 protocol over HTTP or gRPC, and models live in a model repository. "
     "Inflight speaks the same protocol, so its gateway can also stand in front of Triton.",
     "Each model in the repository has a file config.pbtxt that names its inputs and outputs."),
    (("KServe", "the KServe protocol", "KServe v2", "the KServe v2 protocol"),
     "KServe v2 is an open protocol for model servers, with calls for health, metadata and inference over "
     "HTTP and gRPC.",
     "Requests and responses carry named tensors with a datatype and a shape. "
     "In Inflight it is the only wire between the gateway and the workers.",
     "Triton added streaming to it with the call ModelStreamInfer."),
    (("gRPC", "the gRPC protocol", "grpc"),
     "gRPC is a fast protocol for calling functions on another computer, built on HTTP/2 and protocol "
     "buffers.",
     "It supports streams in both directions on one connection. "
     "Inflight's gateway talks to its workers over gRPC, on port 8001 by default.",
     "Messages are described in proto files, from which the code is generated."),
    (("protocol buffers", "protobuf", "proto files"),
     "Protocol buffers are a compact binary format for structured messages.",
     "The fields are described in a proto file and are identified by numbers. "
     "gRPC uses them for all its messages.",
     "They are smaller and faster to read than JSON."),
    (("tensor parallelism", "TP", "tensor parallel", "tensor-parallel inference"),
     "Tensor parallelism splits each layer of a model over several GPUs that compute together.",
     "Each GPU holds a part of every weight matrix, and they exchange results in every layer over a fast "
     "link such as NVLink. "
     "It makes large models fit and lowers latency.",
     "With a tensor parallel size of 4, each GPU holds about a quarter of the weights."),
    (("pipeline parallelism", "pipeline parallel", "PP"),
     "Pipeline parallelism places different layers of a model on different GPUs, one after another like an "
     "assembly line.",
     "It needs little communication, so it also works between machines. "
     "Several batches travel through the pipeline at the same time to keep all GPUs busy.",
     "It is often combined with tensor parallelism inside each machine."),
    (("MPI", "the message passing interface", "mpirun"),
     "MPI, the message passing interface, is a standard for programs that run as many cooperating processes.",
     "Each process has a rank, and the ranks exchange messages. "
     "Inflight's workers use it when an engine runs on several GPUs.",
     "Rank 0 owns the network port, and the other ranks open none."),
    (("NCCL", "the NCCL library", "NVIDIA NCCL"),
     "NCCL is NVIDIA's library for fast communication between GPUs.",
     "It offers operations such as all-reduce, which adds up values over all GPUs. "
     "Tensor parallelism uses it in every layer.",
     "It uses NVLink inside a machine and the network between machines."),
    (("NVLink", "NVSwitch", "an NVLink connection"),
     "NVLink is NVIDIA's fast connection between GPUs in one machine.",
     "It is many times faster than PCI Express. "
     "Tensor parallelism needs it, because the GPUs exchange data in every layer.",
     "With NVSwitch every GPU of a machine reaches every other one at full speed."),
    (("quantization", "quantizing a model", "model quantization", "a quantized model", "quantisation"),
     "Quantization stores a model's numbers with fewer bits, for example 8 or 4 instead of 16.",
     "The model needs less memory and runs faster, while the answers become only slightly worse. "
     "Common formats are FP8, INT8, INT4 and NVFP4.",
     "Both the weights and the KV cache can be quantized."),
    (("FP8", "the FP8 format", "8-bit floating point"),
     "FP8 is a floating point format with only eight bits.",
     "New GPUs compute with it about twice as fast as with sixteen bits, and it halves the memory. "
     "It is a popular choice for serving language models.",
     "It comes in two kinds, E4M3 and E5M2."),
    (("bfloat16", "BF16", "bf16", "the bfloat16 format"),
     "Bfloat16, or BF16, is a floating point format with sixteen bits and the same range as 32-bit floats.",
     "It is less exact but needs half the memory, and neural networks hardly notice. "
     "Most language models are trained and published in it.",
     "My own weights are stored in bfloat16."),
    (("latency", "response latency", "low latency"),
     "Latency is the time that one request has to wait.",
     "For language models one measures the time to the first token and the time between tokens. "
     "Larger batches give more throughput but more latency.",
     "It is best reported as percentiles, such as p50 and p99."),
    (("throughput", "tokens per second", "high throughput"),
     "Throughput is the amount of work a server does per second, for example in tokens per second.",
     "In-flight batching raises it, because many requests share each step. "
     "It has to be balanced against latency.",
     "You can measure it with the command inflight bench."),
    (("time to first token", "TTFT", "the time to first token"),
     "Time to first token, or TTFT, is the time from sending a request to receiving the first token of the "
     "answer.",
     "It includes waiting in the queue and the prefill of the prompt. "
     "Users notice it most, since nothing appears before it.",
     "Prefix caching and chunked prefill help to keep it short."),
    (("inter-token latency", "ITL", "time per output token", "TPOT"),
     "Inter-token latency is the time between two tokens of an answer.",
     "It decides how fast the text appears while it streams. "
     "Larger batches and long prompts of other users can increase it.",
     "About 20 milliseconds per token is faster than most people read."),
    (("streaming", "token streaming", "streaming responses", "streaming in the API"),
     "Streaming sends an answer piece by piece while it is being generated.",
     "In the OpenAI API you set stream to true and receive server-sent events, each with a small delta of "
     "text. "
     "The stream ends with the line data: [DONE].",
     "You are probably reading this answer as a stream right now."),
    (("server-sent events", "SSE", "an event stream"),
     "Server-sent events are a simple way for a server to send many small messages over one HTTP response.",
     "Each message is a line that begins with data and a colon, followed by an empty line. "
     "The OpenAI API uses them for streaming.",
     "Browsers and HTTP clients can read them without any special library."),
    (("the OpenAI API", "OpenAI API", "an OpenAI-compatible API", "OpenAI compatibility"),
     "The OpenAI API is the most common HTTP interface for language models.",
     "A client posts messages to /v1/chat/completions and gets an answer, at once or as a stream. "
     "Inflight offers the same interface, so existing clients work without changes.",
     "You only set the base URL to http://localhost:8000/v1."),
    (("an API", "APIs", "a REST API", "an application programming interface"),
     "An API, or application programming interface, is a set of calls that one program offers to another.",
     "A web API receives requests over HTTP and answers with data, often as JSON. "
     "Inflight offers the OpenAI API.",
     "A good API is documented and does not change by surprise."),
    (("JSON", "the JSON format", "a JSON object"),
     "JSON is a simple text format for data, made of objects, lists, strings, numbers, true, false and null.",
     "It is easy to read for people and programs. "
     "Most web APIs use it for requests and responses.",
     "An example is {\"name\": \"Inflight\", \"port\": 8000}."),
    (("a load balancer", "load balancing", "load balancers"),
     "A load balancer spreads requests over several servers.",
     "It sends each request to a server with room and stops using servers that fail. "
     "Inflight's gateway picks the least loaded worker.",
     "Health checks tell it which servers can be used."),
    (("backpressure", "admission control", "rate limiting", "overload protection"),
     "Admission control decides whether a server accepts a new request or refuses it because it is full.",
     "A quick refusal with status 429 or 503 and a Retry-After header is better than a queue without end. "
     "In Inflight every queue is bounded.",
     "So overload costs rejected requests and never unlimited latency or memory."),
    (("a model repository", "the model repository", "Triton model repository"),
     "A model repository is the folder from which Triton loads its models.",
     "Each model has its own folder with a file config.pbtxt and numbered versions. "
     "A TensorRT-LLM deployment usually has five models: preprocessing, tensorrt_llm, postprocessing, "
     "ensemble and tensorrt_llm_bls.",
     "Inflight's worker serves the same model names, so Triton clients work with it."),
    (("Rust", "the Rust language", "the Rust programming language"),
     "Rust is a programming language that is fast and safe without a garbage collector.",
     "Its compiler checks that memory and threads are used correctly. "
     "Inflight's gateway and the network side of its workers are written in Rust.",
     "The gateway uses the libraries axum and tonic."),
    (("Python", "the Python language", "the Python programming language"),
     "Python is a popular programming language that is easy to read and write.",
     "Most machine learning libraries are used from Python. "
     "In Inflight it holds the command line and the executors.",
     "A first program is print(\"Hello, world!\")."),
    (("PyTorch", "torch", "the PyTorch library"),
     "PyTorch is an open machine learning library for Python.",
     "It computes with tensors on CPUs and GPUs and finds gradients automatically. "
     "I was trained with it.",
     "TensorRT-LLM also has a runtime that is built on PyTorch."),
    (("NumPy", "numpy", "the NumPy library"),
     "NumPy is the standard Python library for fast arithmetic on arrays.",
     "It works on the CPU and is the base of many scientific libraries. "
     "Inflight's reference executor uses it to run small models like me.",
     "Its arrays have a shape and a datatype, just like tensors."),
    (("a tensor", "tensors", "tensors in machine learning"),
     "A tensor is an array of numbers with any number of dimensions.",
     "A list is a tensor with one dimension and a matrix has two. "
     "Models receive, compute and return tensors.",
     "Every tensor has a shape and a datatype."),
    (("Hugging Face", "the Hugging Face hub", "huggingface"),
     "Hugging Face is a company whose hub and libraries are used to share models and data sets.",
     "A model there is a folder with weights in safetensors files, a configuration and a tokenizer. "
     "Inflight's reference executor reads such folders.",
     "I am stored in the same layout."),
    (("safetensors", "a safetensors file", "the safetensors format"),
     "Safetensors is a simple and safe file format for the weights of a model.",
     "It has a small JSON header followed by the raw numbers, and loading it cannot run any code. "
     "My own weights are a safetensors file.",
     "Files in this format can be mapped into memory without copying."),
    (("Docker", "a container", "containers", "a Docker container"),
     "A container packs a program together with everything it needs to run.",
     "It starts quickly and behaves the same on every machine. "
     "Docker is the best known tool for building and running containers.",
     "With NVIDIA's container toolkit, containers can use GPUs as well."),
    (("Kubernetes", "k8s", "a Kubernetes cluster"),
     "Kubernetes runs containers on a cluster of machines.",
     "It starts them, restarts them when they fail, and spreads them over the machines. "
     "Probes ask each container whether it is alive and ready.",
     "Inflight answers such probes at /health/live and /health/ready."),
    (("Prometheus", "metrics", "Prometheus metrics", "monitoring"),
     "Prometheus collects metrics, which are numbers that show how a program is doing.",
     "It reads them from an HTTP page, usually called /metrics, every few seconds. "
     "Inflight's gateway and workers both offer such a page.",
     "The worker's metrics have their own port, 8002 by default."),
)
