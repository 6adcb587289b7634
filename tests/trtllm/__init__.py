"""Contract tests of the TensorRT-LLM executors, over doubles generated from recorded signatures."""
