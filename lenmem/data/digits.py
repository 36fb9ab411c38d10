"""Handwritten digits of 8 x 8 grey pixels (Alpaydin & Kaynak 1998), as contained in scikit-learn: 1,797 pictures."""

from __future__ import annotations

import numpy as np

SIDE = 8
PICTURES = 1797
INKS = 17
"""Number of values of a pixel, 0 to 16."""


def read() -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8[1797, 8, 8] and their digits uint8[1797]. Nothing is downloaded.

    Raises:
        ValueError: if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("the digits are in scikit-learn: pip install 'lenmem[plot]'") from None
    pixels, labels = load_digits(return_X_y=True)
    return np.asarray(pixels, np.uint8).reshape(-1, SIDE, SIDE), np.asarray(labels, np.uint8)


def enlarged(pictures: np.ndarray, side: int) -> np.ndarray:
    """[R, 8, 8] -> [R, side, side]: pixel (r, c) has the value of pixel (8 r / side, 8 c / side), rounded down."""
    source = np.arange(side) * SIDE // side
    return pictures[:, source][:, :, source]
