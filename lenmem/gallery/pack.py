"""Arrays as text: quantised to one or two bytes per number, compressed together, in base64.

    packer = Packer()
    reference = packer.add(weights)           {"at": 0, "shape": [9, 4], "bytes": 1, "low": 0.0, "high": 1.0}
    text = packer.text()                      base64 of a zlib stream

A number is `low + code * (high - low) / (256 ** bytes - 1)`, so its error is at most half a step between codes. Two
bytes are little-endian. The page unpacks the text with the browser's DecompressionStream.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np


class Packer:
    """Collects arrays; `text` returns them as the text that the page unpacks."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, values: np.ndarray, *, fine: bool = False) -> dict[str, Any]:
        """Appends an array and returns a reference to it. `fine`: two bytes per number, for positions and indices.

        The range is [0, 1] if all values are in it. NaN becomes 0, and infinite values become the ends of the range.
        """
        values = np.asarray(values, np.float64)
        finite = values[np.isfinite(values)]
        low, high = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        bytes_ = 2 if fine else 1
        top = 256**bytes_ - 1
        scaled = (np.nan_to_num(values, posinf=high, neginf=low) - low) / (high - low)
        codes = np.round(np.clip(scaled, 0, 1) * top).astype("<u2" if fine else "u1")
        reference = {"at": self.size, "shape": list(values.shape), "bytes": bytes_, "low": low, "high": high}
        self.parts.append(codes.tobytes())
        self.size += len(self.parts[-1])
        return reference

    def text(self) -> str:
        """All arrays, compressed, in base64."""
        return base64.b64encode(zlib.compress(b"".join(self.parts), 9)).decode()
