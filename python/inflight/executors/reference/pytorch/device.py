"""Which device PyTorch computes on, and in one sentence why one cannot be used.

Owns that decision, the oldest PyTorch that works, and the number type that suits a checkpoint.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

from inflight.executors.reference.errors import OptionError

_log = logging.getLogger(__name__)

#: `torch.cuda.graph`, paged indexing and pinned copies as they are used here; checked on 2.11.
OLDEST_TORCH = (2, 6)

#: Models narrower than this are faster on NumPy, wider ones on PyTorch: docs/PERFORMANCE.md.
_WIDE_ENOUGH = 1024


def installed() -> bool:
    """Whether PyTorch can be imported; imports nothing."""
    return importlib.util.find_spec("torch") is not None


def open_device(name: str) -> Any:
    """The `torch.device` of ``cuda`` (the first), ``cuda:1`` or ``cpu``. Errors: `OptionError`."""
    if not installed():
        raise OptionError(
            f"device `{name}` needs PyTorch, which is not installed",
            "install it with `pip install 'inflight-llm[torch]'`, or use device `cpu`",
        )
    try:
        import torch
    except (ImportError, OSError) as error:
        raise OptionError(f"PyTorch cannot be loaded: {error}", "install PyTorch again") from error
    version = tuple(
        int("".join(c for c in part if c.isdigit()) or 0) for part in torch.__version__.split(".")[:2]
    )
    if version < OLDEST_TORCH:
        oldest = ".".join(str(part) for part in OLDEST_TORCH)
        raise OptionError(f"PyTorch {torch.__version__} is too old", f"install {oldest} or later")
    device = torch.device(name)
    if device.type != "cuda":
        return device
    _check_cuda(torch, device)
    # `torch.cuda.set_device` refuses a device without an index.
    return torch.device("cuda", device.index or 0)


def _check_cuda(torch: Any, device: Any) -> None:
    if torch.version.cuda is None:
        raise OptionError(
            f"PyTorch {torch.__version__} is built without CUDA", "install a CUDA build, or use device `cpu`"
        )
    count = torch.cuda.device_count()
    if count == 0 or not torch.cuda.is_available():
        raise OptionError(
            "there is no usable NVIDIA GPU or its driver is missing",
            f"check `nvidia-smi`: PyTorch needs a driver for CUDA {torch.version.cuda}; or use device `cpu`",
        )
    if (device.index or 0) >= count:
        raise OptionError(f"device `{device}` does not exist", f"this machine has {count}, from `cuda:0` on")
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise OptionError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}",
            "use a GPU of 8.0 (Ampere) or later",
        )


def find_device(name: str) -> str:
    """``cpu`` or ``cuda`` for what was asked; ``auto`` is ``cuda`` where PyTorch and a usable GPU are.

    Imports PyTorch, which takes seconds, only where there is a driver. Errors: `OptionError`.
    """
    if name == "cpu":
        return name
    if name == "cuda":
        open_device(name)
        return name
    if name != "auto":
        raise OptionError(
            f"device `{name}` is not available to the reference executor", "use `auto`, `cpu` or `cuda`"
        )
    if not Path("/dev/nvidiactl").exists() or not installed():
        return "cpu"
    try:
        open_device("cuda")
    except OptionError as error:
        _log.warning("the GPU is not used: %s", error)
        return "cpu"
    return "cuda"


def is_faster_on_cpu(hidden_size: int) -> bool:
    """Whether PyTorch is there and faster than NumPy on a CPU for a model of that width.

    Imports PyTorch for wide models only. One that cannot be used is a warning: NumPy serves as well.
    """
    if hidden_size < _WIDE_ENOUGH or not installed():
        return False
    try:
        open_device("cpu")
    except OptionError as error:
        _log.warning("PyTorch is not used: %s", error)
        return False
    return True


def choose_dtype(name: str, stored: str, device: Any) -> Any:
    """The `torch.dtype` to compute in; ``stored`` is the checkpoint's."""
    import torch

    return getattr(torch, auto_dtype(stored, device.type) if name == "auto" else name)


def auto_dtype(stored: str, device_type: str) -> str:
    """What `dtype=auto` selects. On a CPU float32 is fastest; on a GPU it takes twice the memory and several
    times the time, and a float32 checkpoint is mostly one that was saved wider than it was trained."""
    if device_type == "cpu":
        return "float32"
    return stored if stored in ("bfloat16", "float16") else "bfloat16"
