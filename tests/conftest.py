"""What every test runs under: two virtual CPU devices, warnings as errors, reproducible hypothesis examples."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# Read by XLA when its first backend starts, so it has to be set before anything runs. xdist workers inherit it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")
# Compiled programs are shared by workers, by the commands that tests start, and by tests that build the same one again;
# and from run to run, but for CI, which starts from nothing.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    if os.environ.get("CI"):
        programs = Path(tempfile.mkdtemp(prefix="lenmem-programs-"))
        atexit.register(shutil.rmtree, programs, ignore_errors=True)
    else:
        programs = Path(__file__).parent.parent / ".cache" / "jax"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import hypothesis
import jax
import pytest

# Tests hold results to tolerances of float32, which TF32 on a GPU would miss.
jax.config.update("jax_default_matmul_precision", "highest")

hypothesis.settings.register_profile(
    "lenmem",
    deadline=None,  # The first example compiles.
    max_examples=20,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("lenmem")


@pytest.fixture(scope="module", autouse=True)
def programs_of_a_module_are_dropped():
    """Every compiled program maps some memory, and Linux gives a process 65,530 mappings: the suite has more."""
    yield
    jax.clear_caches()
