"""tritonserver over the ranks of an engine: which processes (`plan`), and watching them (`run`)."""
