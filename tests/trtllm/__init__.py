"""Contract tests of the TensorRT-LLM executors, over the double generated from recorded signatures."""
