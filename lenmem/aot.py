"""Compilation of programs for a TPU or GPU that need not be present: whether they compile and fit, and their cost.

XLA compiles for a described topology on any machine. The compilers are in libtpu and in JAX's CUDA plugin; the extra
`aot` installs them. The results are those of the compiler: memory, operations, collectives, and for TPUs its estimate
of cycles. Nothing is run, so no speed is measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from lenmem import configs
from lenmem.compiled import GIB, Compiled, lacking_memory, summary, summed_up, too_large
from lenmem.errors import choices, first_line
from lenmem.evaluation import lengths
from lenmem.evaluation.metrics import ApplyModel
from lenmem.experiment import Experiment
from lenmem.files import make_directory, read_json, write_json
from lenmem.placement import on_platform
from lenmem.training.environment import describe_environment, memory_of_machine, version_of
from lenmem.training.program import advance_on
from lenmem.training.run_directory import abstract_parameters, abstract_state
from lenmem.training.step import whole
from lenmem.types import PyTree

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 85899345920
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""XLA's description of an H100 SXM."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A topology for which programs are compiled."""

    platform: str
    """`tpu`, `cuda` or `cpu`."""
    topology: str
    """XLA's name of the topology."""
    memory: int
    """Memory of one device in bytes."""
    options: tuple[tuple[str, Any], ...] = ()
    """Further options of XLA's topology."""


_ONE_CHIP = (("chips_per_host_bounds", (1, 1, 1)),)
TARGETS = {
    "v4:2x2x1": Target("tpu", "v4:2x2x1", 32 * GIB),
    "v5e:1x1": Target("tpu", "v5e:1x1", 16 * GIB, _ONE_CHIP),
    "v5e:2x2": Target("tpu", "v5e:2x2", 16 * GIB),
    "v5e:4x4": Target("tpu", "v5e:4x4", 16 * GIB),
    "v5p:2x2x1": Target("tpu", "v5p:2x2x1", 95 * GIB),
    "v6e:1x1": Target("tpu", "v6e:1x1", 32 * GIB, _ONE_CHIP),
    "v6e:2x2": Target("tpu", "v6e:2x2", 32 * GIB),
    "cpu": Target("cpu", "this machine", memory_of_machine()),
    "h100": Target("cuda", "1x1x1", 80 * GIB, (("topology", "1x1x1"), ("target_config", H100))),
}

_COMPILERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cpu": ((), ()),
    "tpu": (("libtpu",), ("libtpu",)),
    "cuda": (("jax_plugins.xla_cuda13", "nvidia.cu13"), ("jax-cuda13-plugin", "nvidia-cuda-nvcc", "nvidia-nvvm")),
}
"""platform -> (the packages with its compiler, the distributions whose versions determine it)."""

_LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment variables that prevent libtpu from searching for a TPU."""


class CompileError(ValueError):
    """The compiler rejects a program."""


class DoesNotFitError(CompileError):
    """A program needs more memory than a device has."""


def target_named(name: str) -> Target:
    """The topology with this name. Raises ValueError if it is unknown, or if its compiler is not installed."""
    if name not in TARGETS:
        raise ValueError(f"there is no topology {name!r}.{choices(name, TARGETS, every=True)}")
    missing = [package for package in _COMPILERS[TARGETS[name].platform][0] if not _installed(package)]
    if missing:
        raise ValueError(f"to compile for {name}, install {' and '.join(missing)}: pip install 'lenmem[aot]'")
    return TARGETS[name]


def _installed(package: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(package) is not None
    return False


def devices_of(target: Target) -> Sequence[Any]:
    """The devices of a topology, for compilation."""
    if target.platform == "cpu":
        return jax.local_devices(backend="cpu")
    from jax.experimental import topologies

    if target.platform == "tpu":
        for name, value in _LIBTPU.items():
            os.environ.setdefault(name, value)
    return topologies.get_topology_desc(target.topology, target.platform, **dict(target.options)).devices


def compile_experiment(experiment: Experiment, target: Target, *, dump: Path | None = None) -> dict[str, Compiled]:
    """Compiles two programs of an experiment: `training`, distributed over the devices as `train` does, and
    `evaluation` at the longest length of its curve, on one device.

    Args:
        experiment: the experiment.
        target: the topology.
        dump: a folder for the optimised programs, `training.txt` and `evaluation.txt`.

    Raises `CompileError` if the compiler rejects a program, `DoesNotFitError` for lack of memory.
    """
    programs = lowered_programs(experiment, target)
    return {name: program.compile(name, target, dump) for name, program in programs.items()}


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
    """A lowered program."""

    lowered: jax.stages.Lowered
    cpu_seconds: float
    """CPU time of tracing."""
    devices: int
    """Number of devices on which it runs."""

    def compile(self, name: str, target: Target, dump: Path | None = None) -> Compiled:
        """Compiles the program. The optimised program is written to `NAME.txt` in the folder `dump`."""
        started = time.process_time()
        try:
            with on_platform(target.platform):
                executable = self._executable(target.platform)
        except jax.errors.JaxRuntimeError as error:
            if lacking := lacking_memory(str(error)):
                raise DoesNotFitError(f"the {name} does not fit: {lacking}") from error
            raise CompileError(f"the {name} does not compile: {first_line(error)}") from error
        seconds = self.cpu_seconds + time.process_time() - started
        text = executable.as_text() or ""
        if dump is not None:
            make_directory(dump)
            (dump / f"{name}.txt").write_text(text)
        return summed_up(executable, text, seconds, self.devices, target.memory)

    def _executable(self, platform: str) -> Any:
        """The compiled program. XLA tries out the tiles of a GPU's matrix products on the device. Without one it takes
        tiles that may not fit, and then the products are left to cuBLAS."""
        try:
            return self.lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if platform != "cuda" or "tile sizes" not in str(error):
                raise
            return self.lowered.compile({"xla_gpu_enable_triton_gemm": False})


def lowered_programs(experiment: Experiment, target: Target) -> dict[str, LoweredProgram]:
    """The lowered programs of an experiment, `training` and `evaluation`.

    Raises ValueError for a program that calls the host. Large data sets do not cause this error, since
    `lenmem.data.rows.take` replaces them.
    """
    devices = devices_of(target)
    place = target.platform, devices[0].device_kind
    experiment.task.source("train", experiment.training.batch_size)  # a data set is generated before time is taken
    programs = {}
    for name, lower in {"training": lowered_training, "evaluation": _lowered_evaluation}.items():
        started = time.process_time()
        try:
            with on_platform(*place):
                lowered = lower(experiment, devices)
        except RuntimeError as error:
            if "Unknown backend" not in str(error):  # JAX's error for a callback without a device
                raise
            raise ValueError(
                f"the {name} calls the host, which compiles only on a machine with a {target.platform} device"
            ) from error
        count = experiment.training.device_count(len(devices)) if name == "training" else 1
        programs[name] = LoweredProgram(lowered, time.process_time() - started, count)
    return programs


def digest(programs: dict[str, LoweredProgram], target: Target) -> str:
    """A hash of the programs, the target, the versions of the compilers, and JAX's optimisation level if it is set."""
    versions = {name: version_of(name) for name in ("jaxlib", *_COMPILERS[target.platform][1])}
    level = jax.config.jax_optimization_level  # pyright: ignore[reportAttributeAccessIssue]
    parts = [repr(target), repr(versions), *(one.lowered.as_text() for one in programs.values())]
    if level != "UNKNOWN":
        parts.append(level)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def lowered_training(experiment: Experiment, devices: Sequence[Any]) -> jax.stages.Lowered:
    """`advance` for all seeds, lowered for these devices, which need not be present. Nothing is computed."""
    advance, mesh = advance_on(experiment, devices)
    state = _placed(abstract_state(experiment), whole(mesh) or SingleDeviceSharding(devices[0]))
    return advance.lower(state, experiment.training.log_every)


def _lowered_evaluation(experiment: Experiment, devices: Sequence[Any]) -> jax.stages.Lowered:
    """The measurement of the longest length of the curve, for the first device."""
    evaluation, sharding = experiment.evaluation, SingleDeviceSharding(devices[0])
    params, key = (
        _placed(shapes, sharding)
        for shapes in (abstract_parameters(experiment), jax.eval_shape(lambda: jax.random.key(0)))
    )
    longest = max(evaluation.lengths_for(experiment.task))
    apply = ApplyModel(experiment.bound_model)
    return lengths.lowered(
        apply, params, experiment.task, longest, evaluation.samples, key, batch_size=evaluation.batch_size
    )


def _placed(shapes: PyTree, sharding: Sharding) -> PyTree:
    """The same shapes, of arrays with this sharding."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)


# --- many configurations ----------------------------------------------------------------------------------------------


def at_paper_scale() -> Iterator[str]:
    """The papers' configurations except small presets, sweeps and grids, alternating between the papers."""
    of_papers: dict[str, list[str]] = {}
    for name in configs.names():
        paper, _, _ = name.rpartition("/")
        if paper != "beyond" and not name.endswith(("_small", "_tiny")) and not configs.is_search(name):
            of_papers.setdefault(paper, []).append(name)
    for turn in itertools.zip_longest(*of_papers.values()):
        yield from filter(None, turn)


def compile_all(
    names: Iterable[str], targets: Iterable[str], file: Path, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Compiles configurations for topologies, with a record of each pair in a JSON file.

    A record has `config`, `topology`, `commit`, and either `training`, `evaluation` (see `Compiled`) and `program`, the
    `digest` of the two, or `error`. Pairs without a record come first. Pairs with a record of another commit follow,
    and are compiled again if their programs have changed. The same call therefore continues after an interruption, and
    updates the file after a change.
    """
    made = {name: target_named(name) for name in targets}
    records: list[dict[str, Any]] = read_json(file) if file.exists() else []
    places = {(record["config"], record["topology"]): place for place, record in enumerate(records)}
    environment = describe_environment()
    commit, clean = environment.get("commit"), not environment.get("dirty")
    pairs = [(config, topology) for config in names for topology in made]
    for config, topology in sorted(pairs, key=places.__contains__):
        place = places.get((config, topology))
        known = None if place is None else records[place]
        if known is not None and clean and known["commit"] == commit:
            continue
        found = _found(config, made[topology], known)
        record = {"config": config, "topology": topology, "commit": commit, **found}
        if known is None or _without_commit(record) != _without_commit(known):
            say(f"{config} for {topology}: {_in_short(found)}")
        if place is None:
            records.append(record)
        else:
            records[place] = record
        write_json(file, records)
        jax.clear_caches()
    return records


def failures(records: list[dict[str, Any]], targets: Sequence[str]) -> list[str]:
    """What does not compile or fit on these topologies, according to the records of `compile_all`, a line each."""
    found = []
    for record in records:
        if record.get("topology") not in targets:
            continue
        where = f"{record['config']} for {record['topology']}"
        if "error" in record:
            found.append(f"{where}: {record['error']}")
        elif "training" in record and (large := too_large(where, _programs(record))):
            found.append(large)
    return found


def _programs(record: dict[str, Any]) -> dict[str, Compiled]:
    return {name: Compiled(**record[name]) for name in ("training", "evaluation")}


def save_measured(file: Path, record: dict[str, Any]) -> None:
    """Adds a record that a script measured to the file of `compile_all`, before those of configurations. It replaces
    the record with the same `config`."""
    records = read_json(file) if file.exists() else []
    others = [other for other in records if other["config"] != record["config"]]
    first = sum(not {"training", "error"} & other.keys() for other in others)
    write_json(file, [*others[:first], record, *others[first:]])


def _found(config: str, target: Target, known: dict[str, Any] | None) -> dict[str, Any]:
    """The parts of a record about the programs, which are copied from `known` if the programs have not changed."""
    try:
        programs = lowered_programs(configs.load_config(config), target)
        program = digest(programs, target)
        if known is not None and known.get("program") == program:
            return {name: known[name] for name in ("program", *programs)}
        compiled = {name: one.compile(name, target) for name, one in programs.items()}
    except ValueError as error:
        return {"error": first_line(error)}
    return {"program": program} | {name: dataclasses.asdict(one) for name, one in compiled.items()}


def _without_commit(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "commit"}


def _in_short(found: dict[str, Any]) -> str:
    if "error" in found:
        return found["error"]
    return summary(_programs(found))
