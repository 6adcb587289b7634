"""Memory of a GPU that another process of this host made, and copies out of it: CUDA IPC, by the driver's own
functions.

Owns handles and addresses. PyTorch shares tensors as well, but counts their users in files and keeps memory
until each says so, which one that was killed never does. Knows nothing of blocks.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

#: `CU_IPC_HANDLE_SIZE`, and `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


#: `CUDA_MEMCPY3D_BATCH_OP` of CUDA 12.8: two operands, extent, the order of reading.
_OPERAND = [
    ("kind", "<u4"),
    ("_", "<u4"),
    ("address", "<u8"),
    ("pitch", "<u8"),
    ("rows", "<u8"),
    ("at", "<u8"),
]
_COPY = np.dtype(
    [("source", _OPERAND), ("target", _OPERAND), ("extent", "<u8", 3), ("order", "<u4"), ("flags", "<u4")]
)
#: `CU_MEMCPY_OPERAND_TYPE_POINTER`, `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`.
_POINTER, _IN_STREAM_ORDER = 1, 1
#: What rows may be apart, by CUDA's `maxPitch`.
_MOST_PITCH = (1 << 31) - 1

_BATCH = "cuMemcpy3DBatchAsync"


class DeviceMemoryError(Exception):
    """The driver refused; the text has its name for why."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


def allocation(address: int, device: torch.device) -> tuple[int, int]:
    """Where the allocation that an address is in begins, and its bytes. Errors: `DeviceMemoryError`."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _call(
        device,
        "cuMemGetAddressRange_v2",
        ctypes.byref(base),
        ctypes.byref(size),
        ctypes.c_uint64(address),
    )
    return base.value, size.value


def handle(address: int, device: torch.device) -> bytes:
    """What another process opens the allocation by. Errors: `DeviceMemoryError`, for memory that the
    allocator mapped in pieces."""
    made = _Handle()
    _call(device, "cuIpcGetMemHandle", ctypes.byref(made), ctypes.c_uint64(address))
    return ctypes.string_at(ctypes.addressof(made), HANDLE_BYTES)


def opened(handle: bytes, device: torch.device) -> int:
    """The address at which ``device`` reads another process's allocation, on whichever GPU it is. Errors:
    `DeviceMemoryError`, where that GPU cannot be reached, or the process is this one."""
    address, given = ctypes.c_uint64(), _Handle()
    ctypes.memmove(ctypes.addressof(given), handle, HANDLE_BYTES)
    _call(
        device,
        "cuIpcOpenMemHandle_v2",
        ctypes.byref(address),
        given,
        ctypes.c_uint(_LAZY_PEER_ACCESS),
    )
    return address.value


def close(address: int, device: torch.device) -> None:
    """Lets go of an `opened` allocation. Errors: `DeviceMemoryError`."""
    _call(device, "cuIpcCloseMemHandle", ctypes.c_uint64(address))


@dataclass(frozen=True, slots=True)
class Plane:
    """Rows in memory, ``pitch`` bytes apart, in columns of ``step`` bytes, of which some are meant."""

    address: int
    columns: Any
    step: int
    pitch: int


def require_planes() -> None:
    """Errors: `DeviceMemoryError` for a driver without `copy_planes`, which has it from CUDA 12.8 on."""
    if not hasattr(_driver(), _BATCH):
        raise DeviceMemoryError(f"the driver has no {_BATCH}")


def copy_planes(
    source: Plane, target: Plane, width: int, height: int, device: torch.device, stream: int
) -> None:
    """Queues copies of ``width`` bytes in each of ``height`` rows from columns to columns. Errors:
    `DeviceMemoryError`, with some of them queued."""
    copies, failed = plan_copies(source, target, width, height), ctypes.c_size_t()
    _call(
        device,
        _BATCH,
        ctypes.c_size_t(len(copies)),
        ctypes.c_void_p(copies.ctypes.data),
        ctypes.byref(failed),
        ctypes.c_ulonglong(0),
        ctypes.c_void_p(stream),
    )


def plan_copies(source: Plane, target: Plane, width: int, height: int) -> Any:
    """One for each column, or for each row of it where rows are too far apart: an array of `_COPY`."""
    at_once = height if max(source.pitch, target.pitch) <= _MOST_PITCH else 1
    rows = np.arange(0, height, at_once, dtype=np.uint64)
    copies = np.zeros((len(source.columns), len(rows)), dtype=_COPY)
    for name, plane in (("source", source), ("target", target)):
        columns = plane.address + plane.columns.astype(np.uint64) * plane.step
        operand = copies[name]
        operand["kind"], operand["pitch"] = _POINTER, plane.pitch if at_once > 1 else 0
        operand["address"] = columns[:, None] + rows * plane.pitch
    copies["extent"], copies["order"] = (width, at_once, 1), _IN_STREAM_ORDER
    return copies.reshape(-1)


def _call(device: torch.device, name: str, *arguments: object) -> None:
    driver = _driver()
    # A new thread has no context, and PyTorch makes one only for what it does itself.
    code = driver.cuCtxSetCurrent(_context(_index(device))) or getattr(driver, name)(*arguments)
    if code:
        raise DeviceMemoryError(f"{name}: {_name(code)}")


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else int(device.index)


@cache
def _context(index: int) -> ctypes.c_void_p:
    """The device's own, which PyTorch uses; kept as long as the process."""
    driver, device, context = _driver(), ctypes.c_int(), ctypes.c_void_p()
    code = driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDevicePrimaryCtxRetain(
        ctypes.byref(context), device
    )
    if code:
        raise DeviceMemoryError(f"cuDevicePrimaryCtxRetain: {_name(code)}")
    return context


def _name(code: int) -> str:
    text = ctypes.c_char_p()
    _driver().cuGetErrorName(code, ctypes.byref(text))
    return (text.value or b"").decode() or str(code)


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceMemoryError("the driver's library is not there") from error
