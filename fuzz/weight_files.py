"""Coverage-guided fuzzing of safetensors headers, indexes of shards and adapters' files, whose readers are
Python: `make fuzz TARGET=weight_files`.

Needs `pip install atheris`. The corpus is replayed by `tests/reference/test_fuzz_weight_files.py`.
"""

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["inflight.model", "inflight.executors.reference.model"]):
    from reference.weight_files import check


#: In memory where the system has such a place: files on a disk are thirty times slower.
PLACE = "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> None:
    with tempfile.TemporaryDirectory(dir=PLACE) as directory:
        atheris.Setup(sys.argv, lambda entry: check(Path(directory), entry))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
