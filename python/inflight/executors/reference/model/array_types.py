"""NumPy's arrays by the numbers that they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
