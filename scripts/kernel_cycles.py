"""Static cycles of geometric attention on a TPU that need not be present, by XLA and by the kernel, against softmax.

    python scripts/kernel_cycles.py                                   # print them; takes many minutes on 2 cores
    python scripts/kernel_cycles.py --only "pallas 512"               # programs whose name contains these words
    python scripts/kernel_cycles.py --json results/accelerators.json  # also put them in front of the records of a file

B = 4, H = 8, d = 64, float32. `gradient` is the result together with its gradient for queries, keys and values. The
compiler reports the cycles of XLA's operations (`estimated_cycles`), but not those of kernels, including its own for
softmax, `online-softmax`. Those are counted from its dump: bundles of instructions outside all loops count once, those
in the loop over the grid once for each program, and those in a loop inside it once for each of its steps. A bundle
takes at least one cycle. Waits are not counted in either case. Nothing is run, so no speed is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from lenmem import aot, ops
from lenmem.compiled import known_cycles, memory_text
from lenmem.placement import on_platform
from lenmem.training.environment import describe_environment

BATCH, HEADS, WIDTH = 4, 8, 64
TOPOLOGY = "v5e:1x1"
LENGTHS = (512, 2048)
FORMS = ("softmax", "xla", "pallas", "stick-breaking, pallas")
PASSES = ("forward", "gradient")
BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|\d+)\s+(?P<labels>[A-Z ]*):\s*(?P<depth>>*)\s*\{")


def names() -> Iterator[str]:
    """`FORM LENGTH PASS` for every program."""
    yield from (f"{form} {length} {name}" for length in LENGTHS for form in FORMS for name in PASSES)


def parts(name: str) -> tuple[str, int, str]:
    """Form, length and pass of a name."""
    form, length, which = name.rsplit(" ", 2)
    return form, int(length), which


def softmax(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Plain softmax attention."""
    logits = WIDTH**-0.5 * jnp.einsum("...id,...jd->...ij", query, key)
    return jnp.einsum("...ij,...jv->...iv", jax.nn.softmax(logits), value)


def program(form: str, which: str) -> Callable[..., Any]:
    """The function of queries, keys and values that is compiled."""

    def result(*arrays: jax.Array) -> jax.Array:
        if form == "softmax":
            return softmax(*arrays)
        kind = "xla" if form == "xla" else "pallas"
        operation = ops.stick_breaking_attention if form.startswith("stick") else ops.geometric_attention
        return operation(*arrays, implementation=kind)

    def with_gradient(*arrays: jax.Array) -> Any:
        read, pull = jax.vjp(result, *arrays)
        return read, pull(read)

    return result if which == "forward" else with_gradient


def compiled(name: str, dump: Path) -> dict[str, Any]:
    """The compiler's figures for a program, in a process whose libtpu writes its dumps to this folder."""
    form, length, which = parts(name)
    (device, *_) = aot.devices_of(aot.target_named(TOPOLOGY))
    shape = (BATCH, HEADS, length, WIDTH)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=SingleDeviceSharding(device))] * 3
    started = time.process_time()
    with on_platform("tpu"):
        executable = jax.jit(program(form, which)).lower(*arrays).compile()
    seconds = time.process_time() - started
    text, memory = executable.as_text() or "", executable.memory_analysis()
    assert memory is not None, "libtpu says what memory a program needs"
    cycles = known_cycles(text) + cycles_of_kernels(text, dump, length // 128, form)
    return {
        "form": form,
        "length": length,
        "pass": which,
        "cycles": cycles,
        "temporary": memory.temp_size_in_bytes,
        "cpu_seconds": round(seconds, 1),
    }


def cycles_of_kernels(text: str, dump: Path, blocks: int, form: str) -> int:
    """The cycles of all kernels of a program, from its text and the newest bundles of their names in libtpu's dump."""
    total = 0
    for call in re.findall(r"%?([\w.-]+) = [^\n]* custom-call\([^\n]*tpu_custom_call", text):
        bundles = max(dump.glob(f"*-{call}-*[0-9]-final_bundles.txt"), key=os.path.getmtime)
        total += kernel_cycles(bundles.read_text(), blocks, form)
    return total


def kernel_cycles(text: str, blocks: int, form: str) -> int:
    """The bundles of a kernel times the number of times that they run. `blocks` of 128 positions.

    The depth of a line of the dump in loops is its number of `>`: the grid is the first loop, and loops over blocks are
    the second. Loops over blocks visit every block, or every block except that of the tile: the last loop of a kernel
    has `blocks` steps, the others have `blocks` - 1. With keys on one side only, it is half of this on average.
    """
    outside, grid, loops = 0, 0, []
    for line in text.splitlines():
        match = BUNDLE.match(line)
        if match is None:
            continue
        depth = len(match["depth"])
        if depth == 0:
            outside += 1
        elif depth == 1:
            grid += 1
        else:
            if "LB" in match["labels"]:
                loops.append(0)
            loops[-1] += 1
    if form == "softmax" and loops:
        raise ValueError("the compiler's own kernel has inner loops, of unknown numbers of steps")
    # The loop over the grid is a pipeline of three stages: it ends two steps after the last program has begun.
    programs = int(re.findall(r"(\d+) /\* loop exit test", text)[-1]) - 2
    steps = [blocks - 1] * (len(loops) - 1) + [blocks] * bool(loops)
    if form.startswith("stick"):
        steps = [(blocks - 1) / 2] * (len(loops) - 1) + [(blocks + 1) / 2] * bool(loops)
    inside = sum(bundles * count for bundles, count in zip(loops, steps, strict=True))
    return round(outside + programs * (grid + inside))


def measured(name: str) -> dict[str, Any]:
    """`compiled` in a separate process. The dump takes minutes and is only needed for kernels, of which XLA's form of
    geometric attention has none."""
    with tempfile.TemporaryDirectory() as folder:
        dump = "" if parts(name)[0] == "xla" else f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        environment = os.environ | {"LIBTPU_INIT_ARGS": dump, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": ""}
        command = [sys.executable, __file__, "--compile", name, folder]
        run = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="only programs whose name contains this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also put the figures into this file")
    parser.add_argument("--compile", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        print(json.dumps(compiled(options.compile[0], Path(options.compile[1]))))
        return
    chosen = [name for name in names() if options.only in name]
    if not chosen:
        parser.error(f"no program has {options.only!r} in its name; there are: {'; '.join(names())}")
    commit = describe_environment().get("commit")
    for name in chosen:
        figures = measured(name)
        print(
            f"{name}: {figures['cycles'] / 1e6:.3f} M cycles, {memory_text(figures['temporary'])}, "
            f"{figures['cpu_seconds']:.0f} CPU s",
            flush=True,
        )
        if options.json:
            record = {"config": f"attention {name}", "topology": TOPOLOGY, "commit": commit, "attention": figures}
            aot.save_measured(options.json, record)


if __name__ == "__main__":
    main()
