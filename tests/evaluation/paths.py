"""Handmade paths of a controller's states."""

from __future__ import annotations

import numpy as np


def traces_of(paths: np.ndarray, encoding: int = 2, steps: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Traces with states along paths [B, T, d]; each row has `steps` real states, followed by garbage."""
    paths = np.array(paths, float)
    rows, longest, _ = paths.shape
    time = np.broadcast_to(np.arange(longest), (rows, longest))
    valid = time < np.array(steps or [longest] * rows)[:, None]
    paths[~valid] = np.nan
    return {"controller_state": paths, "valid": valid, "decoding": time >= encoding}
