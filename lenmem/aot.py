"""Programs compiled for a TPU or GPU that need not be there: do they compile, do they fit, and what do they cost?

XLA compiles for a described topology on any machine. libtpu and the CUDA plugin of JAX bring the compilers; the extra
`aot` installs them. What comes out is what the compiler says: memory, operations, collectives, and for TPUs its own
estimate of cycles. Nothing is run, so nothing here is a speed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import itertools
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

_COMPILERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cpu": ((), ()),
    "tpu": (("libtpu",), ("libtpu",)),
    "cuda": (("jax_plugins.xla_cuda13", "nvidia.cu13"), ("jax-cuda13-plugin", "nvidia-cuda-nvcc", "nvidia-nvvm")),
}
"""platform -> (the packages that compile for it, the distributions with their versions)."""

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
    missing = [package for package in _COMPILERS[TARGETS[name].platform][0] if not _installed(package)]
    if missing:
        raise ValueError(f"to compile for {name}, install {' and '.join(missing)}: pip install 'lenmem[aot]'")
    return TARGETS[name]


def _installed(package: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(package) is not None
    return False


def _version(distribution: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


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
    programs = lowered_programs(experiment, target)
    return {name: program.compile(name, target, dump) for name, program in programs.items()}


@dataclasses.dataclass(frozen=True)
class Program:
    """A lowered program."""

    lowered: jax.stages.Lowered
    cpu_seconds: float
    """CPU time of tracing."""
    devices: int
    """Devices it runs on."""

    def compile(self, name: str, target: Target, dump: Path | None = None) -> Compiled:
        """What the compiler says of it; the optimised program goes to `NAME.txt` in the folder `dump`."""
        started = time.process_time()
        try:
            with on_platform(target.platform):
                executable = self.lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            raise CompileError(f"the {name} does not compile: {_reason(str(error))}") from error
        seconds = self.cpu_seconds + time.process_time() - started
        text = executable.as_text() or ""
        if dump is not None:
            dump.mkdir(parents=True, exist_ok=True)
            (dump / f"{name}.txt").write_text(text)
        return _summed_up(executable, text, seconds, self.devices, target)


def lowered_programs(experiment: Experiment, target: Target) -> dict[str, Program]:
    """The programs of an experiment that are compiled: `training` and `evaluation`."""
    devices = devices_of(target)
    programs = {}
    for name, lower in {"training": lowered_training, "evaluation": _lowered_evaluation}.items():
        started = time.process_time()
        with on_platform(target.platform):
            lowered = lower(experiment, devices)
        count = experiment.training.device_count(len(devices)) if name == "training" else 1
        programs[name] = Program(lowered, time.process_time() - started, count)
    return programs


def digest(programs: dict[str, Program], target: Target) -> str:
    """What two sets of programs share if they, their target and the compilers are the same."""
    versions = {name: _version(name) for name in ("jaxlib", *_COMPILERS[target.platform][1])}
    return hashlib.sha256(
        "\n".join([repr(target), repr(versions), *(one.lowered.as_text() for one in programs.values())]).encode()
    ).hexdigest()[:16]


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
    """Kind -> how many, in the text of a program. libtpu writes one that runs beside other work as a chain of steps; it
    is counted once."""
    found = {}
    for kind in COLLECTIVES:
        lines = re.findall(rf"^.* {kind}(?:-start)?\(.*$", text, re.MULTILINE)
        chains = [re.search(r'chain_id="\d+"', line) for line in lines]
        found[kind] = chains.count(None) + len({chain[0] for chain in chains if chain})
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
    """The named configurations of the papers but for the small presets and the grids of sweeps; the papers in turn."""
    of_papers: dict[str, list[str]] = {}
    for name in configs.names():
        paper, _, last = name.rpartition("/")
        if paper != "beyond" and not name.endswith(("_small", "_tiny")) and not last.startswith(("sweep", "grid")):
            of_papers.setdefault(paper, []).append(name)
    for turn in itertools.zip_longest(*of_papers.values()):
        yield from filter(None, turn)


def compile_all(
    names: Iterable[str], targets: Iterable[str], file: Path, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Compile configurations for topologies, and keep what is known of each pair in a JSON file.

    A record has `config`, `topology`, `commit`, and either `training` and `evaluation` (see `Compiled`) with the
    `program` that they are of (`digest`), or `error`. What the file lacks comes first. Records of other commits follow:
    their programs are compiled again if they are not the same any more. So the same call goes on where it was cut off,
    and again after a change.
    """
    made = {name: target_named(name) for name in targets}
    records: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
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


def _found(config: str, target: Target, known: dict[str, Any] | None) -> dict[str, Any]:
    """What there is to say of a configuration: what was `known`, if its programs are still the same."""
    try:
        programs = lowered_programs(configs.load_config(config), target)
        program = digest(programs, target)
        if known is not None and known.get("program") == program:
            return {name: known[name] for name in ("program", *programs)}
        compiled = {name: one.compile(name, target) for name, one in programs.items()}
    except ValueError as error:
        return {"error": str(error).splitlines()[0]}
    return {"program": program} | {name: dataclasses.asdict(one) for name, one in compiled.items()}


def _without_commit(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "commit"}


def _in_short(found: dict[str, Any]) -> str:
    if "error" in found:
        return found["error"]
    return summary({name: Compiled(**found[name]) for name in ("training", "evaluation")})


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
