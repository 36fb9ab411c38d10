"""Programs compiled ahead of time: what is said of them, how many are compiled at once, and what is refused."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from lenmem import aot, cli, configs, ops, parallel
from lenmem.compiled import collectives, largest, summed_up
from lenmem.data import rows
from lenmem.placement import on_platform
from lenmem.training.program import seeds_program
from tests.training.tiny import Bag, experiment

TINY = """
from lenmem import Evaluation, Experiment, Training
from lenmem.tasks.lantm import Copy
from tests.training.tiny import Bag

experiment = Experiment(
    Copy(vocabulary=4, train_lengths=(1, 3)),
    Bag(width=6),
    Training(steps=4, seeds=2, batch_size=4, log_every=2, checkpoint_every=2),
    Evaluation(lengths=(2, 5), samples=4),
)
"""


@pytest.fixture
def tiny(tmp_path):
    """A configuration in a file."""
    (tmp_path / "tiny.py").write_text(TINY)
    return str(tmp_path / "tiny.py")


def test_the_lowered_training_is_that_which_trains():
    """Compiled for this machine, it takes a state that a training makes, and gives what `advance` gives."""
    made = experiment(Bag(), seeds=2)
    key = jax.random.key(made.training.seed)
    run = seeds_program(made, key)
    compiled = aot.lowered_training(made, jax.local_devices()).compile()
    expected, record = run.advance(run.init(), made.training.log_every)
    state, again = compiled(run.init())
    for a, b in zip(jax.tree.leaves((expected, record)), jax.tree.leaves((state, again)), strict=True):
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_the_verb(tiny, tmp_path, capsys):
    """Two programs, their memory and their text."""
    cli.main(["compile", tiny, "--topology", "cpu", "--dump", str(tmp_path / "hlo")])
    printed = capsys.readouterr().out
    assert "training" in printed and "evaluation" in printed and "MiB" in printed
    assert {path.name for path in (tmp_path / "hlo" / "cpu").iterdir()} == {"training.txt", "evaluation.txt"}
    assert "ENTRY" in (tmp_path / "hlo" / "cpu" / "training.txt").read_text()


def test_what_does_not_fit_exits_1(tiny, tmp_path, monkeypatch, capsys):
    """One line says which program, and the amounts, also for all configurations."""
    monkeypatch.setitem(aot.TARGETS, "cpu", aot.Target("cpu", "this machine", 1000))
    monkeypatch.setattr(aot, "at_paper_scale", lambda: [tiny])
    for arguments in ([tiny], ["--all", "--json", str(tmp_path / "all.json")]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["compile", *arguments, "--topologies", "cpu"])
        assert stopped.value.code == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert re.search(r"cpu: training needs 0\.\d MiB, and a device has 0\.0 MiB", said)


@pytest.mark.parametrize(("error", "status"), [(aot.DoesNotFitError, 1), (aot.CompileError, 2)])
def test_a_topology_for_which_it_does_not_compile_leaves_the_others(tiny, monkeypatch, capsys, error, status):
    """Too large for one: exit 1. Rejected for another reason: exit 2."""

    def compiled(experiment, target, *, dump):
        if target is aot.TARGETS["cpu"]:
            return {}
        raise error("no")

    monkeypatch.setattr(aot, "compile_experiment", compiled)
    monkeypatch.setattr(aot, "_installed", lambda package: True)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compile", tiny, "--topologies", "v5e:2x2", "h100", "cpu"])
    assert stopped.value.code == status
    assert capsys.readouterr().err.splitlines() == ["error: v5e:2x2: no", "h100: no"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topologies"], "--topologies needs at least one name"),
        (["--topologies", "v5e:2x3"], r"there is no topology 'v5e:2x3'\. Did you mean .* Allowed: .*h100"),
        (["--topologies", "v5e:2x2"], r"to compile for v5e:2x2, install libtpu: pip install 'lenmem\[aot\]'"),
        (["--topologies", "h100"], r"to compile for h100, install .*xla_cuda13.*: pip install 'lenmem\[aot\]'"),
    ],
)
def test_bad_input(tiny, arguments, message, monkeypatch, capsys):
    """An unknown topology and a missing wheel, before anything is compiled."""
    monkeypatch.setattr(aot, "_installed", lambda package: False)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compile", tiny, *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert re.search(message, line)


@pytest.mark.parametrize(
    ("says", "kind", "message"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.1G of 15.75G hbm.\nMore",
            aot.DoesNotFitError,
            "the training does not fit: it needs 20.1GB of hbm, and a device has 15.75GB",
        ),
        ("INTERNAL: no\nat all", aot.CompileError, "the training does not compile: INTERNAL: no"),
    ],
)
def test_what_the_compiler_refuses_is_one_line(says, kind, message):
    """Of memory that is too small only the amounts are said."""

    class Lowered:
        def compile(self):
            raise jax.errors.JaxRuntimeError(says)

    with pytest.raises(kind) as refused:
        aot.LoweredProgram(Lowered(), 0.0, 1).compile("training", aot.TARGETS["cpu"])  # pyright: ignore
    assert str(refused.value) == message and type(refused.value) is kind


def test_products_whose_tiles_do_not_fit_are_left_to_another_library():
    """Only those for a GPU, whose tiles are tried out where there is a device; other errors pass."""

    class Lowered:
        def __init__(self, says):
            self.says, self.asked = says, []

        def compile(self, options=None):
            self.asked.append(options)
            if options is None:
                raise jax.errors.JaxRuntimeError(self.says)
            return jax.jit(jnp.sin).lower(1.0).compile()

    def compiled(platform, says="INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.4"):
        lowered = Lowered(says)
        program = aot.LoweredProgram(lowered, 0.0, 1)
        with contextlib.suppress(aot.CompileError):
            program.compile("training", aot.TARGETS[platform])
        return lowered.asked

    assert compiled("h100") == [None, {"xla_gpu_enable_triton_gemm": False}]
    assert compiled("v5e:2x2") == compiled("h100", "INTERNAL: another") == [None]


def test_a_program_that_calls_the_host_is_refused_in_one_line(tiny, monkeypatch):
    """JAX looks for the device that would call; other errors pass."""

    def refuse(text):
        def lower(*given):
            raise RuntimeError(text)

        monkeypatch.setattr(aot, "lowered_training", lower)
        return aot.lowered_programs(configs.load_config(tiny), aot.TARGETS["cpu"])

    with pytest.raises(ValueError, match="the training calls the host, .* with a cpu device"):
        refuse("Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present.")
    with pytest.raises(RuntimeError, match="something else"):
        refuse("something else")


def test_rows_of_a_large_data_set_are_left_out_for_a_device_that_is_not_here():
    """They come from the host, which a program that is only compiled cannot call. Shape and type are the same."""
    array = np.arange(2**21, dtype=np.int32).reshape(-1, 2, 4)
    index = jnp.asarray([[3, 5], [7, 2**18 - 1]])

    def fetch(index):
        return jax.vmap(lambda i: rows.take(array, i))(index)

    np.testing.assert_array_equal(jax.jit(fetch)(index), array[np.asarray(index)])
    with on_platform("tpu"):
        lowered = jax.jit(lambda index: fetch(index)).lower(index)
    assert "callback" in jax.jit(fetch).lower(index).as_text() and "callback" not in lowered.as_text()
    assert lowered.out_info.shape == (2, 2, 2, 4) and lowered.out_info.dtype == np.int32


def test_another_optimisation_level_is_another_program():
    programs = {"training": aot.LoweredProgram(jax.jit(jnp.sin).lower(1.0), 0.0, 1)}
    digests = [aot.digest(programs, aot.TARGETS["cpu"])]
    for level in ("O1", "O2", "UNKNOWN"):
        jax.config.update("jax_optimization_level", level)
        digests.append(aot.digest(programs, aot.TARGETS["cpu"]))
    assert len(set(digests)) == 3 and digests[0] == digests[-1]


@pytest.mark.thorough
def test_many_are_compiled_once(tiny, tmp_path, monkeypatch):
    """What the file has is kept, what a configuration lacks is said in its record. At another commit, what has changed
    is compiled again, after what was missing."""
    bad, other = tmp_path / "bad.py", tmp_path / "other.py"
    bad.write_text("experiment = 3")
    file, said = tmp_path / "all.json", []

    def compile_at(commit, *names):
        monkeypatch.setattr(aot, "describe_environment", lambda: {"commit": commit, "dirty": False})
        said.clear()
        return aot.compile_all([str(name) for name in names], ["cpu"], file, said.append)

    compile_at("a", tiny, bad)
    records = json.loads(file.read_text())
    assert [record["config"] for record in records] == [tiny, str(bad)] and len(said) == 2
    assert records[0]["training"]["memory"] > 0 and records[0]["evaluation"]["devices"] == 1
    assert "must define `experiment" in records[1]["error"]
    with monkeypatch.context() as still:
        still.setattr(aot, "lowered_programs", None)
        assert compile_at("a", tiny, bad) == records and not said
    later = [record | {"commit": "b"} for record in records]
    with monkeypatch.context() as still:
        still.setattr(aot.LoweredProgram, "compile", None)
        assert compile_at("b", tiny, bad) == later and not said
    Path(tiny).write_text(TINY.replace("width=6", "width=7"))
    other.write_text(TINY)
    changed = compile_at("c", tiny, other)
    assert [line.split(" for ")[0] for line in said] == [str(other), tiny]
    assert [record["commit"] for record in changed] == ["c", "b", "c"]
    assert changed[0]["program"] != records[0]["program"] and changed[2]["program"] == records[0]["program"]


def test_the_largest_arrays():
    """Those of a real program, with their bytes; what only exists inside of a fusion is none."""
    text = jax.jit(lambda x: (x @ x.T).sum()).lower(jnp.zeros((50, 30))).compile().as_text()
    assert ("f32[50,50]", 10_000) in largest(text)
    fused = "%fused_computation (p: f32[9]) -> f32[9] {\n  %a = f32[900]{0} add(p, p)\n}\n"
    assert largest(fused + "ENTRY %main {\n  %b = bf16[9,2]{1,0} copy(p)\n}") == [("bf16[9,2]", 36)]


def test_collectives_are_counted():
    """Started ones once, steps of one once, references to them not at all."""
    text = "  %a = f32[2] all-reduce(%x)\n  %b = f32[2] all-gather-start(%a)\n  %c = f32[2] all-gather-done(%b)\n"
    assert collectives(text) == {"all-reduce": 1, "all-gather": 1}
    step = '  %a = f32[2] all-gather(%x), frontend_attributes={chain_id="0"}\n'
    assert collectives(2 * step + step.replace("0", "1")) == {"all-gather": 2}


def test_every_paper_is_compiled():
    """At its own scale, without presets for a CPU and grids."""
    names = set(aot.at_paper_scale())
    assert {"lantm/copy", "ndr/ctl", "nam/fibonacci", "dnc/copy", "panm/copy"} <= names
    assert not any("small" in name or "grid" in name or "sweep" in name for name in names)
    papers = [name.rpartition("/")[0] for name in aot.at_paper_scale()]
    assert len(set(papers[:6])) == 6


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs lenmem[aot]")
@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2", "h100"])
def test_it_compiles_for(topology):
    """The tiny training, for devices that are not there; on several it is spread."""
    compiled = aot.compile_experiment(experiment(seeds=2), aot.target_named(topology))
    assert all(one.fits and one.instructions > 100 for one in compiled.values())
    if topology != "h100":
        assert compiled["training"].devices == 4 and compiled["training"].collectives


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs lenmem[aot]")
@pytest.mark.parametrize("causal", [False, True])
def test_one_collective_per_layer(causal):
    """Outer-product attention over four chips exchanges memories once, and their gradients once, by `pmap` as by
    `shard_map`. One device exchanges nothing."""
    layers, shape = 3, (2, 2, 512, 128)
    devices = aot.devices_of(aot.target_named("v5e:2x2"))
    mesh = parallel.make_mesh(devices=devices)

    def stacked(attend):
        def apply(x):
            for _ in range(layers):
                x = x + attend(jnp.sin(x), jnp.cos(x), x)
            return x

        return apply

    def counted(function, shape, sharding):
        text = jax.jit(function).lower(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)).compile().as_text()
        return sum(collectives(text).values())

    def gradient(function):
        return jax.grad(lambda x: jnp.sum(jnp.square(function(x))))

    spread = NamedSharding(mesh, PartitionSpec(None, None, "sequence", None))
    whole = functools.partial(parallel.sharded_outer_product_attention, mesh=mesh, causal=causal)
    alone = functools.partial(ops.normalized_outer_product_attention, causal=causal)
    one = parallel._pmapped(causal, tuple(devices), 2)
    parts = [jax.ShapeDtypeStruct((2, 2, 4, 128, 128), jnp.float32)] * 3
    for platform in ("tpu", "cpu")[: 1 + causal]:  # on a TPU causal attention is a kernel, for others XLA's operations
        with on_platform(platform):
            assert counted(stacked(whole), shape, spread) == layers
            assert counted(gradient(stacked(whole)), shape, spread) == 2 * layers
            assert counted(stacked(alone), shape, SingleDeviceSharding(devices[0])) == 0
            text = one.lower(*parts).compile().as_text()
        assert sum(collectives(text).values()) == 1
        assert ("tpu_custom_call" in text) == (causal and platform == "tpu")
        jax.clear_caches()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs lenmem[aot]")
@pytest.mark.parametrize("precision", [None, "highest"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("widths", "erases", "decays"), [((33, 65), True, True), ((256, 256), True, True), ((5, 1), False, False)]
)
def test_recurrences_of_any_kind_compile_as_kernels(dtype, widths, erases, decays, precision):
    """With gradient, mapped over seeds, on one chip: one kernel forward and one backward."""
    placed = functools.partial(
        jax.ShapeDtypeStruct,
        dtype=dtype,
        sharding=SingleDeviceSharding(aot.devices_of(aot.target_named("v5e:1x1"))[0]),
    )
    rows, (width, of_values) = (2, 3, 300), widths
    sizes = {"queries": (*rows, width), "keys": (*rows, width), "values": (*rows, of_values), "write": rows}
    sizes |= {"erase": rows} if erases else {}
    sizes |= {"log_decay": rows} if decays else {}

    def loss(arrays):
        state, reads = ops.linear_recurrence(**arrays)
        return jnp.sum(state) + jnp.sum(jnp.square(reads.astype(jnp.float32)))

    with on_platform("tpu"), jax.default_matmul_precision(precision):
        function = jax.jit(jax.vmap(jax.grad(loss)))
        text = function.lower({name: placed(size) for name, size in sizes.items()}).compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 2


def test_options_of_all(tmp_path, monkeypatch):
    """What `--all` passes on."""
    asked = []
    monkeypatch.setattr(aot, "compile_all", lambda names, targets, file, say: asked.append((targets, file)) or [])
    cli.main(["compile", "--all", "--topologies", "cpu", "--json", str(tmp_path / "a.json")])
    assert asked == [(("cpu",), tmp_path / "a.json")]


def test_the_page_shows_its_records():
    """`docs/accelerators.md` is what `results/accelerators.json` gives, but for configurations that came since: what
    was not tried is a list of that day."""
    path = Path(__file__).parents[1] / "scripts/make_accelerators.py"
    script = runpy.run_path(str(path))
    records = json.loads(script["RECORDS"].read_text())
    since = re.compile(r"\n*Not tried yet:\n(?:.+\n)+")
    written, made = script["PAGE"].read_text(), script["page"](records)
    assert since.sub("", written) == since.sub("", made)
    assert len(since.findall(written)) == len(since.findall(made))
    assert {(record["config"], record["topology"]) for record in records} and all(
        record["topology"] in aot.TARGETS for record in records
    )


def test_what_a_script_measured_stands_before_the_configurations(tmp_path):
    file = tmp_path / "records.json"
    aot.save_measured(file, {"config": "a kernel", "cycles": 1})
    configurations = [{"config": "lantm/copy", "training": {}}, {"config": "dnc/copy", "error": "none"}]
    file.write_text(json.dumps([*json.loads(file.read_text()), *configurations]))
    for record in ({"config": "another", "cycles": 2}, {"config": "a kernel", "cycles": 3}):
        aot.save_measured(file, record)
    assert json.loads(file.read_text()) == [
        {"config": "another", "cycles": 2},
        {"config": "a kernel", "cycles": 3},
        *configurations,
    ]


def test_products_and_cycles_of_loops_count_as_often_as_they_run():
    """What `scripts/linear_cycles.py` counts: matrix products in a traced program, and estimates in a compiled one."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts/linear_cycles.py"))

    def program(x, weights):
        x = jax.lax.scan(lambda x, _: (jnp.sin(x @ weights), None), x, length=5)[0]
        return jnp.einsum("bij,bkj->bik", x.reshape(2, 2, 3), x.reshape(2, 2, 3))

    x = jax.ShapeDtypeStruct((4, 3), jnp.float32), jax.ShapeDtypeStruct((3, 3), jnp.float32)
    products = script["products_of"](jax.make_jaxpr(program)(*x).jaxpr)
    assert sorted(products.values()) == [1, 5]
    assert sum(n * script["operations"](one) for one, n in products.items()) == 2 * (5 * 4 * 3 * 3 + 2 * 2 * 2 * 3)
    x = jax.ShapeDtypeStruct((600, 3), jnp.float32)
    by_kernel = functools.partial(ops.linear_attention, causal=True, implementation="pallas")
    assert {*script["products_of"](jax.make_jaxpr(by_kernel)(x, x, x).jaxpr).values()} == {5}  # chunks of 128
    with pytest.raises(ValueError, match="unknown length"):
        script["products_of"](jax.make_jaxpr(lambda x: jax.lax.while_loop(jnp.all, jnp.sin, x))(1.0).jaxpr)

    text = """HloModule m
%condition.1 (p: (s32[])) -> pred[] {
  %limit.2 = s32[]{:T(128)} constant(6)
}

%body.1 (p: (s32[])) -> (s32[]) {
  %a = f32[8] add(), backend_config={"estimated_cycles":"10"}
}

%outer.3 (p: f32[8]) -> f32[8] {
  %b = f32[8] while(%t), condition=%condition.1, body=%body.1
}

ENTRY %main.4 (p: f32[8]) -> f32[8] {
  %c = f32[8] call(%p), to_apply=%outer.3
  ROOT %d = f32[8] add(%c, %c), backend_config={"estimated_cycles":"7"}
}
"""
    assert script["cycles_of"](text) == 67


def test_cycles_that_the_compiler_does_not_know_are_not_summed():
    executable = jax.jit(jnp.sin).lower(1.0).compile()

    def cycles(*numbers: int) -> int | None:
        text = " ".join(f'"estimated_cycles":"{number}"' for number in numbers)
        return summed_up(executable, text, 1.0, 1, 1).cycles

    assert (cycles(10, 20), cycles(), cycles(10, 2**63 - 1)) == (30, None, None)
