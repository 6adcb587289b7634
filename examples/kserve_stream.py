"""Streams token ids straight from a worker, with NVIDIA's Triton client and no gateway."""

import numpy as np
import tritonclient.grpc as grpc

client = grpc.InferenceServerClient("localhost:8001")
inputs = []
for name, values, datatype in [
    ("input_ids", np.array([[5, 6, 7]], np.int32), "INT32"),
    ("input_lengths", np.array([[3]], np.int32), "INT32"),
    ("request_output_len", np.array([[8]], np.int32), "INT32"),
    ("streaming", np.array([[True]]), "BOOL"),
]:
    tensor = grpc.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    inputs.append(tensor)

client.start_stream(lambda result, error: print(error or result.as_numpy("output_ids").ravel()))
client.async_stream_infer("tensorrt_llm", inputs)
client.stop_stream()
