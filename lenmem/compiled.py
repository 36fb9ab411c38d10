"""A compiler's figures for a program: its memory, its costs and its largest arrays, as numbers and as text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from typing import Any

GIB = 2**30
UNKNOWN = 2**62
"""Cycles that a compiler does not know are near 2^63."""
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's figures for a program."""

    cpu_seconds: float
    """CPU time of tracing and compiling on this machine, summed over threads."""
    devices: int
    """Number of devices on which the program runs."""
    memory: int
    """Memory on each device in bytes: arguments, results, temporary arrays and code."""
    available: int
    """Memory of a device in bytes."""
    flops: float | None
    """Operations on one device. The body of a loop counts once. None if the compiler does not report it."""
    bytes_accessed: float | None
    """Bytes read and written on one device. The body of a loop counts once."""
    cycles: int | None
    """Estimated cycles on one device, only for TPUs. The body of a loop counts once. None if some are not known."""
    instructions: int
    """Number of lines of the optimised program."""
    collectives: dict[str, int]
    """Kind -> number of collective operations in the program."""
    largest: list[tuple[str, int]]
    """The largest arrays, as (type and shape, bytes)."""

    @property
    def costs(self) -> tuple[tuple[float | None, float, str], ...]:
        """Operations, bytes and cycles: value, unit, name of the unit."""
        return (self.flops, 1e9, "GFLOP"), (self.bytes_accessed, 1e9, "GB moved"), (self.cycles, 1e6, "M cycles")

    @property
    def fits(self) -> bool:
        """Whether a device has enough memory."""
        return self.memory <= self.available


def summed_up(executable: Any, text: str, seconds: float, devices: int, available: int) -> Compiled:
    """The figures of a compiled program, from its analyses and its text. `available` is the memory of a device."""
    memory, cost = executable.memory_analysis(), executable.cost_analysis() or {}
    return Compiled(
        cpu_seconds=round(seconds, 1),
        devices=devices,
        memory=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes,
        available=available,
        flops=cost.get("flops"),
        bytes_accessed=cost.get("bytes accessed"),
        cycles=estimated_cycles(text) or None,
        instructions=len(text.splitlines()),
        collectives=collectives(text),
        largest=largest(text),
    )


def estimated_cycles(text: str) -> int | None:
    """The sum of the compiler's estimates for all operations in the text of a program: 0 if there are none, as for a
    GPU. None if some are not known."""
    cycles = [int(number) for number in re.findall(r'"estimated_cycles":"(\d+)"', text)]
    return None if any(number >= UNKNOWN for number in cycles) else sum(cycles)


def known_cycles(text: str) -> int:
    """`estimated_cycles`, or ValueError if some are not known."""
    cycles = estimated_cycles(text)
    if cycles is None:
        raise ValueError("the compiler does not know the cycles of all operations")
    return cycles


def collectives(text: str) -> dict[str, int]:
    """Kind -> number of collective operations in the text of a program. An asynchronous one, which libtpu writes as a
    chain of steps, counts once."""
    found = {}
    for kind in COLLECTIVES:
        lines = re.findall(rf"^.* {kind}(?:-start)?\(.*$", text, re.MULTILINE)
        chains = [re.search(r'chain_id="\d+"', line) for line in lines]
        found[kind] = chains.count(None) + len({chain[0] for chain in chains if chain})
    return {kind: count for kind, count in found.items() if count}


_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2}
_BYTES |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}


def largest(text: str, count: int = 5) -> list[tuple[str, int]]:
    """The largest results of instructions, each type and shape once, without those inside fusions, which are not
    stored."""
    sizes: Counter[str] = Counter()
    fused = False
    for line in text.splitlines():
        if line and not line[0].isspace():
            fused = "fused_computation" in line.split("(")[0]
        match = re.match(r"\s+(?:ROOT )?%?[\w.-]+ = (\w+)\[([\d,]*)\]", line)
        if match and not fused and match[1] in _BYTES:
            elements = math.prod(map(int, filter(None, match[2].split(","))))
            sizes[f"{match[1]}[{match[2]}]"] = int(elements * _BYTES[match[1]])
    return sizes.most_common(count)


def lacking_memory(message: str) -> str | None:
    """The amount of memory needed, if that is the reason in the compiler's message."""
    short = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) (\w+)", message)
    return short and f"it needs {short[1]}B of {short[3]}, and a device has {short[2]}B"


def too_large(name: str, compiled: dict[str, Compiled]) -> str | None:
    """The programs for a topology that need more memory than a device has, with the amounts; None if all fit."""
    found = [
        f"{title} needs {memory_text(one.memory)}, and a device has {memory_text(one.available)}"
        for title, one in compiled.items()
        if not one.fits
    ]
    return f"{name}: {'; '.join(found)}" if found else None


def described(name: str, compiled: dict[str, Compiled]) -> str:
    """The figures of the programs for a topology, in a few lines each."""
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
    """CPU time and memory of each program, in one line."""
    return "; ".join(
        f"{name} {one.cpu_seconds:.0f} CPU s, {memory_text(one.memory)} of {memory_text(one.available)}"
        for name, one in compiled.items()
    )
