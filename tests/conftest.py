"""Settings of all tests: two virtual CPU devices, warnings as errors, reproducible hypothesis examples."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# A shell's background jobs ignore Ctrl-C; the processes that tests start and stop would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# XLA reads this when its first backend starts, so it is set before anything runs. xdist workers inherit it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")
# OpenMP threads that wait for each other block cores for other workers: t-SNE took 20 times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Every operation of a program would carry ten lines of traceback, which take a tenth of the time to compile it.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# And the names of the modules that it is in, which take another tenth.
os.environ.setdefault("FLAX_PROFILE", "0")
if "PYTEST_XDIST_WORKER" not in os.environ:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()
    # A test runs a few steps of a tiny network, for which optimised compilation takes longer than running. (The
    # README's examples, which CI also runs, are optimised.) XLA aborts a process that passes an unknown flag.
    starts = [sys.executable, "-c", "import jax; jax.devices()"]
    quick = "backend_optimization_level=0", "cpu_use_fusion_emitters=false", "cpu_parallel_codegen_split_count=1"
    # Devices of one program wait for each other, and XLA would abort after 40 s; on busy cores that is too soon.
    patient = "cpu_collective_call_terminate_timeout_seconds=1800"
    options = [f"--xla_{option}" for option in (*quick, patient)]
    for some in (options, *([option] for option in options)):  # all at once; if one is unknown, one by one
        tried = os.environ | {"XLA_FLAGS": " ".join([flags, *some])}
        if set(some) <= set(flags.split()):
            continue
        if subprocess.run(starts, env=tried, capture_output=True, check=False).returncode == 0:
            flags = tried["XLA_FLAGS"]
    os.environ["XLA_FLAGS"] = flags
# Compiled programs and generated data are shared by workers, by commands that tests start, and by later runs; CI starts
# without them. The user's own caches are not touched.
if not {"JAX_COMPILATION_CACHE_DIR", "LENMEM_CACHE"} <= os.environ.keys():
    if os.environ.get("CI"):
        kept = Path(tempfile.mkdtemp(prefix="lenmem-tests-"))
        atexit.register(shutil.rmtree, kept, ignore_errors=True)
    else:
        kept = Path(__file__).parent.parent / ".cache"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(kept / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    os.environ.setdefault("LENMEM_CACHE", str(kept / "data"))

import hypothesis
import jax
import pytest

from tests import learning

# Tests use float32 tolerances, which TF32 on a GPU would not meet.
jax.config.update("jax_default_matmul_precision", "highest")
# Tracing creates many long-lived objects. Collecting garbage as often as usual would take too long.
gc.freeze()
gc.set_threshold(100_000, 20, 100)

hypothesis.settings.register_profile(
    "lenmem",
    deadline=None,  # The first example compiles.
    max_examples=20,
    derandomize=True,  # What passes here passes anywhere.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "search", hypothesis.settings.get_profile("lenmem"), derandomize=False, max_examples=200
)
hypothesis.settings.load_profile("lenmem")


@pytest.fixture(scope="module", autouse=True)
def programs_of_a_module_are_dropped():
    """Each compiled program maps some memory, and Linux allows 65,530 mappings per process: the suite has more."""
    yield
    jax.clear_caches()


def pytest_addoption(parser):
    parser.addoption("--keys", type=int, default=1, help="from how many random keys each learning test trains")


def pytest_configure():
    try:
        learning.check_instruction_set(os.environ.get("XLA_FLAGS", ""))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture
def learns(request):
    """`learns(one, bar, worst)`: `one(key)` reaches `bar` for every key. Without `worst`, 20 keys were not measured."""

    def check(one, bar, worst=None):
        assert worst is None or worst >= bar, f"the worst of 20 keys is {worst}, below the bar {bar}"
        values = learning.values(one, request.config.getoption("keys"))
        request.node.user_properties.append(("learning", (bar, worst, float(values.min()))))
        assert values.min() >= bar, f"the keys reach {values.round(3).tolist()}, wanted {bar}"

    return check


def pytest_terminal_summary(terminalreporter, config):
    """With `--keys N`: prints the worst value of each learning test, beside its bar."""
    if config.getoption("keys") == 1:
        return
    terminalreporter.section(f"the worst of {config.getoption('keys')} keys")
    terminalreporter.line(" worst    bar  stated")
    for outcome in "passed", "failed":
        for report in terminalreporter.stats.get(outcome, []):
            for bar, stated, worst in (value for name, value in report.user_properties if name == "learning"):
                terminalreporter.line(f"{worst:6.3f} {bar:6.3f}  {stated or '-':>6}  {report.nodeid}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """`--dist=loadfile`, with the file that is most of the suite shared out model by model.

    Tests that share fixtures and compiled programs thus stay on one worker. The groups are made from names, not from
    the mark `xdist_group`, since pytest 9.2 ignores the names that pytest-xdist 3.8 gives marked tests.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group(nodeid)

    return ByGroup(config, log)


def group(nodeid: str) -> str:
    """`tests/a.py` of `tests/a.py::test_b[c]`; of a test of the contract with its model's name."""
    file = nodeid.partition("::")[0]
    case = re.search(r"test_contract\.py::test_(?:contract\w*|it_learns)\[(\w+)", nodeid)
    return f"{file}[{case[1]}]" if case else file
