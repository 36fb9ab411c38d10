"""Static cycles of outer-product attention and of the erasing scan on TPUs that need not be present, against the peak.

    python scripts/linear_cycles.py                                   # print them; takes many minutes on 2 cores
    python scripts/linear_cycles.py --only "scan 4096"                # programs whose name contains these words
    python scripts/linear_cycles.py --json results/accelerators.json  # also put them in front of the records of a file

Causal `normalized_outer_product_attention` and `nam_scan` with reads, each by XLA and by the kernel, one row of 8
heads, bfloat16, of S positions and width d. `gradient`: the reads together with their gradient. Three numbers of cycles
are compared:

    whole       the compiler's estimates (`estimated_cycles`) of all operations, those of a loop times its steps; for a
                kernel its bundles times the steps of its grid, as in `kernel_cycles.py`
    products    the same only for the matrix products, each compiled separately, times the number of its uses; not known
                for a kernel
    peak        the operations of these products at the rate of all matrix units, each product as one pass in bfloat16

Nothing is run, so no speed is measured.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import SingleDeviceSharding

from lenmem import aot, ops
from lenmem.compiled import known_cycles
from lenmem.placement import on_platform
from lenmem.training.environment import describe_environment

HEADS = 8
CHUNK = 64
"""Positions of a chunk of `nam_scan` by XLA: on v5p its default, 32, takes a third more cycles."""
OPERATIONS = ("attention", "attention_kernel", "scan", "scan_kernel", "scan_gradient", "scan_kernel_gradient")
LENGTHS = (4096, 16384, 65536)
WIDTHS = (64, 128)
PEAK = {"v5e:1x1": 4 * 2 * 128 * 128, "v5p:2x2x1": 8 * 2 * 128 * 128}
"""Operations of one chip per cycle: 4 or 8 matrix units of 128 x 128, each with a multiplication and an addition."""


def names() -> Iterator[str]:
    """`OPERATION LENGTH WIDTH TOPOLOGY` for every program."""
    for topology in PEAK:
        for length in LENGTHS:
            yield from (f"{kind} {length} {width} {topology}" for kind in OPERATIONS for width in WIDTHS)


def operation(kind: str) -> Callable[..., Any]:
    """The function of queries, keys, values and gates that is compiled."""

    implementation, size = ("pallas", None) if "kernel" in kind else ("xla", CHUNK)

    def attention(queries, keys, values, gates):
        read = ops.normalized_outer_product_attention(
            queries, keys, values, write_probability=gates, causal=True, implementation=implementation
        )
        assert isinstance(read, jax.Array)
        return read

    def scan(queries, keys, values, gates):
        reads = ops.nam_scan(
            keys, values, gates, gates, queries=queries, chunk_size=size, implementation=implementation
        )[1]
        assert reads is not None
        return reads

    def gradient(*arrays):
        reads, pull = jax.vjp(scan, *arrays)
        return reads, pull(reads)

    if kind.endswith("gradient"):
        return gradient
    return scan if kind.startswith("scan") else attention


def measured(name: str, dump: Path) -> dict[str, Any]:
    """The compiler's figures for a program and for its products. `dump`: the folder of libtpu's bundles."""
    from kernel_cycles import cycles_of_kernels  # the script beside this one

    kind, length, width, topology = name.split(" ")
    shape = (1, HEADS, int(length), int(width))
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16)] * 3 + [jax.ShapeDtypeStruct(shape[:-1], jnp.bfloat16)]
    with on_platform("tpu"):
        traced = jax.make_jaxpr(operation(kind))(*arrays)
    products = products_of(traced.jaxpr)
    text = compiled(jaxpr_as_fun(traced), arrays, topology)
    whole, alone = cycles_of(text) + cycles_of_kernels(text, dump, blocks=0, form="kernel"), None
    if "kernel" not in kind:
        alone = sum(count * product_cycles(product, topology) for product, count in products.items())
    work = sum(count * operations(product) for product, count in products.items())
    peak = work / PEAK[topology]
    figures = {"whole": whole, "products": alone, "peak": round(peak)}
    return {"operation": kind, "length": int(length), "width": int(width), **figures}


def compiled(function: Callable[..., Any], arrays: list[jax.ShapeDtypeStruct], topology: str) -> str:
    """The text of a program for one device."""
    (device, *_) = aot.devices_of(aot.target_named(topology))
    placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(device)) for x in arrays]
    with on_platform("tpu"):
        return jax.jit(function).lower(*placed).compile().as_text() or ""


Product = tuple[tuple[tuple[int, ...], Any], tuple[tuple[int, ...], Any], Any, Any, Any]
"""Shape and type of both operands, the numbers of its dimensions, its precision, the type of its sums."""


def products_of(jaxpr: Any, times: int = 1) -> Counter[Product]:
    """The number of times that each matrix product is computed."""
    found: Counter[Product] = Counter()
    for equation in jaxpr.eqns:
        options = equation.params
        if equation.primitive.name == "dot_general":
            a, b = ((x.aval.shape, x.aval.dtype) for x in equation.invars)
            sums = options["preferred_element_type"]
            found[a, b, options["dimension_numbers"], options["precision"], sums] += times
            continue
        steps = 1
        if equation.primitive.name == "scan":
            steps = options["length"]
        elif equation.primitive.name == "pallas_call":
            steps = math.prod(options["grid_mapping"].grid)
        elif equation.primitive.name == "while":
            raise ValueError("a loop of unknown length")
        for value in options.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += products_of(inner, times * steps)
    return found


def operations(product: Product) -> int:
    """Multiplications and additions."""
    (a, _), (b, _), (contracted, batch), *_ = product
    free = [size for i, size in enumerate(b) if i not in (*contracted[1], *batch[1])]
    return 2 * int(np.prod(a) * np.prod(free))


@functools.cache
def product_cycles(product: Product, topology: str) -> int:
    """The compiler's estimate for a product alone."""
    a, b, dimensions, precision, sums = product
    function = functools.partial(
        jax.lax.dot_general, dimension_numbers=dimensions, precision=precision, preferred_element_type=sums
    )
    return cycles_of(compiled(function, [jax.ShapeDtypeStruct(*x) for x in (a, b)], topology))


def cycles_of(text: str) -> int:
    """The sum of the estimates of all operations of a program, those in the body of a loop times its steps."""
    computations = {
        match[1]: match[2]
        for match in re.finditer(r"^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    }
    (entry,) = re.findall(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE)

    def total(name: str) -> int:
        found = known_cycles(computations[name])
        for line in computations[name].splitlines():
            loop = re.search(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)", line)
            called = re.search(r" call\(.*to_apply=%?([\w.-]+)", line)
            if loop:
                found += steps(loop[1]) * total(loop[2])
            elif called:
                found += total(called[1])
        return found

    def steps(condition: str) -> int:
        """The number of steps of a loop that counts from zero to a constant."""
        (limit,) = re.findall(r" s32\[\][^ ]* constant\((\d+)\)", computations[condition])
        return int(limit)

    return total(entry)


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="only programs whose name contains this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also put the figures into this file")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    chosen = [name for name in names() if options.only in name]
    if not chosen:
        parser.error(f"no program has {options.only!r} in its name; there are: {'; '.join(names())}")
    commit = describe_environment().get("commit")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"  # read once
        for name in chosen:
            figures = measured(name, Path(folder))
            whole, products, peak = (figures[x] for x in ("whole", "products", "peak"))
            alone = "" if products is None else f"products alone {products / whole:.0%} of it, "
            print(f"{name}: {whole} cycles; {alone}peak {peak / whole:.0%}", flush=True)
            if options.json:
                record = {"config": f"linear {name}", "topology": name.split()[-1], "commit": commit, "linear": figures}
                aot.save_measured(options.json, record)


if __name__ == "__main__":
    main()
