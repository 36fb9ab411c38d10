"""Programs compiled for a TPU or GPU that need not be there: do they compile, do they fit, and what do they cost?

XLA compiles for a described topology on any machine. libtpu and the CUDA plugin of JAX bring the compilers; the extra
`aot` installs them. What comes out is what the compiler says: memory, operations, collectives, and for TPUs its own
estimate of cycles. Nothing is run, so nothing here is a speed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from lenmem import configs
from lenmem.errors import choices
from lenmem.evaluation import lengths
from lenmem.evaluation.metrics import ApplyModel
from lenmem.experiment import Experiment
from lenmem.placement import on_platform
from lenmem.serialize import write_json
from lenmem.training.environment import describe_environment
from lenmem.training.program import advance_on
from lenmem.training.run_directory import abstract_parameters, abstract_state
from lenmem.training.step import whole
from lenmem.types import PyTree

GIB = 2**30

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
"""An H100 SXM as XLA describes a GPU."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A topology that programs are compiled for."""

    platform: str
    """`tpu`, `cuda` or `cpu`."""
    topology: str
    """How XLA names it."""
    memory: int
    """Bytes of one device."""
    options: tuple[tuple[str, Any], ...] = ()
    """What else XLA wants to know of it."""


_ONE_CHIP = (("chips_per_host_bounds", (1, 1, 1)),)
TARGETS = {
    "v4:2x2x1": Target("tpu", "v4:2x2x1", 32 * GIB),
    "v5e:1x1": Target("tpu", "v5e:1x1", 16 * GIB, _ONE_CHIP),
    "v5e:2x2": Target("tpu", "v5e:2x2", 16 * GIB),
    "v5e:4x4": Target("tpu", "v5e:4x4", 16 * GIB),
    "v5p:2x2x1": Target("tpu", "v5p:2x2x1", 95 * GIB),
    "v6e:1x1": Target("tpu", "v6e:1x1", 32 * GIB, _ONE_CHIP),
    "v6e:2x2": Target("tpu", "v6e:2x2", 32 * GIB),
    "cpu": Target("cpu", "this machine", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    "h100": Target("cuda", "1x1x1", 80 * GIB, (("topology", "1x1x1"), ("target_config", H100))),
}

_COMPILERS = {
    "cpu": (),
    "tpu": ("libtpu",),
    "cuda": ("jax_plugins.xla_cuda13", "nvidia.cu13"),
}
"""platform -> the packages that compile for it."""

_LIBTPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""What keeps libtpu from looking for the TPU that it runs on."""

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler says of a program."""

    cpu_seconds: float
    """CPU time of tracing and compiling on this machine, all threads together."""
    devices: int
    """Devices it runs on."""
    memory: int
    """Bytes on each device, at the peak: arguments, results, temporary arrays and code."""
    available: int
    """Bytes that a device has."""
    flops: float | None
    """Operations on one device. The body of a loop counts once. None: the compiler does not say."""
    bytes_accessed: float | None
    """Bytes read and written on one device, counted alike."""
    cycles: int | None
    """Estimated cycles of one device, counted alike; TPU only."""
    instructions: int
    """Lines of the optimised program."""
    collectives: dict[str, int]
    """Kind -> how many are in the program."""
    largest: list[tuple[str, int]]
    """The largest arrays, as (type and shape, bytes)."""

    @property
    def costs(self) -> tuple[tuple[float | None, float, str], ...]:
        """Operations, bytes and cycles, each with the unit it is printed in."""
        return (self.flops, 1e9, "GFLOP"), (self.bytes_accessed, 1e9, "GB moved"), (self.cycles, 1e6, "M cycles")

    @property
    def fits(self) -> bool:
        """A device has the memory."""
        return self.memory <= self.available


class CompileError(ValueError):
    """The compiler refuses a program."""


def target_named(name: str) -> Target:
    """The topology of this name. ValueError for an unknown one, and where its compiler is not installed."""
    if name not in TARGETS:
        raise ValueError(f"there is no topology {name!r}.{choices(name, TARGETS)}")
    missing = [package for package in _COMPILERS[TARGETS[name].platform] if not _installed(package)]
    if missing:
        raise ValueError(f"to compile for {name}, install {' and '.join(missing)}: pip install 'lenmem[aot]'")
    return TARGETS[name]


def _installed(package: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(package) is not None
    return False


def devices_of(target: Target) -> Sequence[Any]:
    """The devices of a topology, to compile for."""
    if target.platform == "cpu":
        return jax.local_devices(backend="cpu")
    from jax.experimental import topologies

    if target.platform == "tpu":
        for name, value in _LIBTPU.items():
            os.environ.setdefault(name, value)
    return topologies.get_topology_desc(target.topology, target.platform, **dict(target.options)).devices


def compile_experiment(experiment: Experiment, target: Target, *, dump: Path | None = None) -> dict[str, Compiled]:
    """Compile the `training` step of an experiment, spread over the devices as training would be, and its `evaluation`
    at the longest length of its curve, on one device.

    Args:
        experiment: what to compile.
        target: what for.
        dump: a folder for the optimised programs, `training.txt` and `evaluation.txt`.

    Raises `CompileError` where the compiler refuses, for want of memory or otherwise.
    """
    devices = devices_of(target)
    lowered = {"training": lowered_training, "evaluation": _lowered_evaluation}
    compiled = {}
    for name, lower in lowered.items():
        started = time.process_time()
        try:
            with on_platform(target.platform):
                executable = lower(experiment, devices).compile()
        except jax.errors.JaxRuntimeError as error:
            raise CompileError(f"the {name} does not compile: {_reason(str(error))}") from error
        seconds = time.process_time() - started
        text = executable.as_text() or ""
        if dump is not None:
            dump.mkdir(parents=True, exist_ok=True)
            (dump / f"{name}.txt").write_text(text)
        count = experiment.training.device_count(len(devices)) if name == "training" else 1
        compiled[name] = _summed_up(executable, text, seconds, count, target)
    return compiled


def lowered_training(experiment: Experiment, devices: Sequence[Any]) -> jax.stages.Lowered:
    """`advance` of all seeds, lowered for these devices, which need not be there. Nothing is computed."""
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


def _summed_up(executable: Any, text: str, seconds: float, devices: int, target: Target) -> Compiled:
    memory, cost = executable.memory_analysis(), executable.cost_analysis() or {}
    cycles = [int(number) for number in re.findall(r'"estimated_cycles":"(\d+)"', text)]
    return Compiled(
        cpu_seconds=round(seconds, 1),
        devices=devices,
        memory=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes,
        available=target.memory,
        flops=cost.get("flops"),
        bytes_accessed=cost.get("bytes accessed"),
        cycles=sum(cycles) if cycles else None,
        instructions=len(text.splitlines()),
        collectives=_collectives(text),
        largest=_largest(text),
    )


def _collectives(text: str) -> dict[str, int]:
    """Kind -> how many, in the text of a program."""
    found = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in COLLECTIVES}
    return {kind: count for kind, count in found.items() if count}


_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}


def _largest(text: str, count: int = 5) -> list[tuple[str, int]]:
    """The largest arrays that instructions give, each shape once; what is inside of a fusion is never in memory."""
    sizes: Counter[str] = Counter()
    fused = False
    for line in text.splitlines():
        if line and not line[0].isspace():
            fused = "fused_computation" in line.split("(")[0]
        match = re.match(r"\s+(?:ROOT )?%?[\w.-]+ = (\w+)\[([\d,]*)\]", line)
        if match and not fused and match[1] in _BYTES:
            elements = 1
            for size in filter(None, match[2].split(",")):
                elements *= int(size)
            sizes[f"{match[1]}[{match[2]}]"] = int(elements * _BYTES[match[1]])
    return sizes.most_common(count)


def _reason(message: str) -> str:
    """The first line of what the compiler says; of memory that is too small, how much was asked for."""
    short = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) (\w+)", message)
    if short:
        return f"it needs {short[1]}B of {short[3]}, and a device has {short[2]}B"
    return message.strip().splitlines()[0]


# --- many configurations ----------------------------------------------------------------------------------------------


def at_paper_scale() -> Iterator[str]:
    """The named configurations but for the small presets and the grids of sweeps."""
    for name in configs.names():
        last = name.rpartition("/")[2]
        if not name.endswith("_small") and not last.startswith(("sweep", "grid")):
            yield name


def compile_all(
    names: Iterable[str], targets: Iterable[str], file: Path, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Compile configurations for topologies, and keep what is known of each pair in a JSON file.

    A record has `config`, `topology`, `commit`, and either `training` and `evaluation` (see `Compiled`) or `error`.
    Pairs that the file has already are kept, so that the same call goes on where it was cut off.
    """
    made = {name: target_named(name) for name in targets}
    records: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    known = {(record["config"], record["topology"]) for record in records}
    commit = describe_environment().get("commit")
    for config in names:
        for topology, target in made.items():
            if (config, topology) in known:
                continue
            record: dict[str, Any] = {"config": config, "topology": topology, "commit": commit}
            try:
                compiled = compile_experiment(configs.load_config(config), target)
                record |= {name: dataclasses.asdict(of_program) for name, of_program in compiled.items()}
                say(f"{config} for {topology}: {summary(compiled)}")
            except ValueError as error:
                record["error"] = str(error).splitlines()[0]
                say(f"{config} for {topology}: {record['error']}")
            jax.clear_caches()
            records.append(record)
            write_json(file, records)
    return records


def described(name: str, compiled: dict[str, Compiled]) -> str:
    """What the compiler says of the programs for a topology, in a few lines each."""
    lines = []
    for title, one in compiled.items():
        costs = [f"{value / unit:.3g} {what}" for value, unit, what in one.costs if value is not None]
        collectives = [f"{count} {kind}" for kind, count in one.collectives.items()]
        lines += [
            f"{name} {title}: {one.devices} device(s), compiled in {one.cpu_seconds:.0f} CPU s, "
            f"{memory_text(one.memory)} of {memory_text(one.available)} each",
            f"  costs, with the body of a loop counted once: {', '.join(costs) or 'not said'}",
            f"  collectives: {', '.join(collectives) or 'none'}",
            f"  largest arrays: {', '.join(f'{shape} {memory_text(size)}' for shape, size in one.largest[:3])}",
        ]
    return "\n".join(lines)


def memory_text(size: int) -> str:
    """`0.3 MiB`, `12 MiB` or `4.8 GiB`."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.{0 if size >= 2**22 else 1}f} MiB"


def summary(compiled: dict[str, Compiled]) -> str:
    """Seconds and memory of each program in one line."""
    return "; ".join(
        f"{name} {one.cpu_seconds:.0f} CPU s, {memory_text(one.memory)} of {memory_text(one.available)}"
        for name, one in compiled.items()
    )
