"""The documentation uses existing names, and its examples run. `.ci/run` builds it."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lenmem
from lenmem import cli
from lenmem.data.pairs import MOST_CHARACTERS
from lenmem.files import read_json
from lenmem.tasks.base import Task, draw

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] in ("api", "papers", path.name))
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))


def run(path: Path) -> ModuleType:
    """A Python file of the documentation as a module."""
    spec = importlib.util.spec_from_file_location(f"documented_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


docstrings = run(DOCS / "docstrings.py")


# Examples -------------------------------------------------------------------------------------------------------------


def test_every_example_is_shown_and_tested():
    shown = set(re.findall(r"literalinclude\} examples/(\w+)\.py", "".join(path.read_text() for path in PAGES)))
    own = {"own_encoder", "own_module", "own_task", "nnx_bridge", "tracker", "falling_rate"}
    assert shown == {path.stem for path in EXAMPLES} == own | {"few_shot_digits", "document_memory", "streaming_memory"}


@pytest.mark.parametrize("example", ["own_encoder", "own_module"])
def test_a_network_of_ones_own_ignores_padding(example):
    experiment = run(DOCS / f"examples/{example}.py").experiment
    model, batch = experiment.bound_model, jax.vmap(lambda key: experiment.task.sample(key, 3, 5))
    batch = batch(jax.random.split(jax.random.key(0), 2))
    arguments = batch.input_mask, batch.target_mask
    params = jax.jit(model.init)(jax.random.key(1), batch.inputs, *arguments)["params"]
    apply = jax.jit(lambda inputs: model.apply({"params": params}, inputs, *arguments))
    outputs = apply(batch.inputs)
    assert outputs.shape == (*batch.targets.shape, experiment.task.spec.output_size)
    other = apply(jnp.where(batch.input_mask, batch.inputs, 1 - batch.inputs))
    np.testing.assert_array_equal(outputs[batch.target_mask], other[batch.target_mask])


@pytest.mark.parametrize("example", ["own_encoder", "own_module", "own_task"])
def test_what_is_ones_own_keeps_the_rules(example):
    findings = lenmem.check(run(DOCS / f"examples/{example}.py").experiment)
    assert len(findings) == 16 and not any(problem for _, problem in findings)


def test_the_running_maximum_is_right():
    """And the best constant answer, the highest symbol, is as frequent as the page says."""
    task = run(DOCS / "examples/own_task.py").experiment.task
    lengths = jax.random.randint(jax.random.key(1), (2000,), 1, 21)
    batch = jax.jit(draw, static_argnums=(0, 3))(task, jax.random.key(2), lengths, 20)
    for row, answer, length in zip(*map(np.asarray, (batch.inputs, batch.targets, lengths)), strict=True):
        assert answer[:length].tolist() == [max(row[: t + 1]) for t in range(length)]
    highest = jnp.full_like(batch.targets, task.symbols - 1)
    constant = task.metrics(jax.nn.one_hot(highest, task.symbols), batch)["token_accuracy"].mean()
    assert abs(float(constant) - task.spec.chance) < 0.02


@pytest.mark.thorough
def test_a_falling_rate_and_a_selection(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ["--training.steps", "20", "--training.log-every", "10", "--evaluation.lengths", "3"]
    selected = ["--training.selection", "validation", "--training.validate-every", "10"]
    cli.main(["train", str(DOCS / "examples/falling_rate.py"), *few, *selected, "--directory", "run"])
    training = lenmem.load("run").experiment.training
    assert training.selection == "validation" and training.optimizer.schedule == lenmem.training.Cosine(warmup=0.1)


@pytest.mark.thorough
def test_a_tracker_gets_every_line():
    example = run(DOCS / "examples/tracker.py")
    lines = [
        (entry["step"], {f"loss/seed {i}": x for i, x in enumerate(entry["loss"])}) for entry in example.result.history
    ]
    assert example.logged == lines
    assert [step for step, _ in lines] == [10, 20]


@pytest.mark.slow
def test_the_how_to_page_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs its Python and its commands, in order, with few steps and curves of two lengths."""
    pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Task, "curve_lengths", property(lambda task: task.train_lengths))
    run_blocks(DOCS / "howto.md")
    assert list((tmp_path / "runs/copy-gru").rglob("events.out.tfevents*"))
    assert lenmem.load("runs/copy-again").step == lenmem.load("runs/copy-gru").step == 2
    assert len(list((tmp_path / "runs").glob("sweeps/*/sweep.png"))) == 1


def test_digits_are_learned_by_writes(tmp_path: Path):
    """Far above chance after one picture of each, better after ten; the pictures in the page can be drawn."""
    example = run(DOCS / "examples/few_shot_digits.py")
    found = example.accuracies((1, 10), episodes=2)
    assert set(found) == {*example.WAYS, "nearest mean (no memory)"}
    for name, values in found.items():
        assert np.all(values.mean(axis=1) > (0.4, 0.65)), name
    assert found["writes by a tenth"][1].mean() > found["exact writes"][1].mean()
    example.draw((1, 10), found, tmp_path / "digits.png")
    assert (tmp_path / "digits.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_a_document_is_read_by_sentence_and_word(tmp_path: Path):
    """Every word is found, one is replaced, and more random keys need more width."""
    example = run(DOCS / "examples/document_memory.py")
    assert example.read == example.SENTENCES
    assert example.reread == [*example.SENTENCES[0][:-1], "tape"]
    assert example.names(example.third_word[None], example.words) == [example.SENTENCES[1][2]]
    assert example.second.shape == (64, 16)
    shares = example.draw((2, 64), 1, tmp_path / "document.png")
    assert shares[0] < 0.5 < 0.99 < shares[1]
    assert (tmp_path / "document.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_a_stream_is_measured():
    """The memory of the page's network: 4 layers of 4 matrices 32 x 32, and a counter."""
    example = run(DOCS / "examples/streaming_memory.py")
    assert example.stream(101)["memory, bytes"] == 4 * (4 * 4 * 32 * 32 + 1)
    assert example.whole(64) > 64 * 256 * 4


@pytest.mark.thorough
@pytest.mark.learning
def test_a_module_inside_an_nnx_model_is_trained_with_it(learns):
    """The bridged module computes the same as the Linen module, and a few steps teach it to look to the left."""
    nnx = pytest.importorskip("flax.nnx")
    example = run(DOCS / "examples/nnx_bridge.py")

    def fall(key):
        """The fraction of the loss that the example's steps remove."""
        model = example.Router(nnx.Rngs(key))
        optimizer = nnx.Optimizer(model, example.optax.adam(1e-2), wrt=nnx.Param)
        losses = [example.train_step(model, optimizer, example.tokens, example.mask) for _ in example.losses]
        return 1 - losses[-1] / losses[0]

    learns(fall, bar=0.75, worst=0.891)

    params = nnx.to_pure_dict(nnx.state(example.model.attention, nnx.Param))
    states = jax.random.normal(jax.random.key(0), (*example.tokens.shape, 32))
    linen = jax.jit(example.GeometricAttention(features=32, heads=2).apply)({"params": params}, states, example.mask)
    bridged = nnx.jit(lambda model: model.attention(states, example.mask))(example.model)
    np.testing.assert_allclose(bridged, linen, rtol=1e-5, atol=1e-6)
    assert abs(float(params["direction"]["bias"][0] - params["direction"]["bias"][1])) > 0.01


def run_blocks(page: Path) -> ModuleType:
    """Runs the Python and the commands of a page, in order, with two steps."""
    reader = ModuleType("reader")
    for language, code in re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        quick = re.sub(r"(steps[= ])\d+", r"\g<1>2", code)
        if language == "python":
            exec(compile(quick, page.name, "exec", dont_inherit=True), vars(reader))
            continue
        for command in quick.splitlines():
            program, *words = shlex.split(command)
            assert program == "lenmem"
            cli.main(words)
    return reader


@pytest.mark.slow
def test_the_page_on_data_of_ones_own_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Runs its Python and its commands, in order, with few steps."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "own_data.md").read_text()
    reader = run_blocks(DOCS / "own_data.md")
    assert vars(reader)["run"].experiment == vars(reader)["experiment"]
    assert f"{MOST_CHARACTERS:,} characters" in page
    assert (tmp_path / "runs/pairs-lstm/training.png").exists()


def test_every_picture_has_its_command():
    """In the page beside it. Notebooks draw theirs; SVGs are drawings of boxes."""
    count = 0
    for path in PAGES:
        text = path.read_text()
        for picture in re.finditer(r"^(?:```\{figure\}|!\[.*\]\().*?\.(?:png|webp)", text, re.MULTILINE):
            near = text[max(0, picture.start() - 900) : picture.end() + 600]
            assert re.search(r"`(lenmem|python|chromium) [^`]+`", near), f"{path.name}: {picture[0]}"
            count += 1
    assert count >= 4


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_names_exist(path: Path):
    """The references of a page, and the models that a paper's page lists."""
    text = path.read_text()
    for name in re.findall(r"\{py:\w+\}`~?([\w.]+)`", text):
        assert docstrings.locate(name), f"{path.name} refers to {name}"
    for row in re.findall(r"^\| models \| ([^(|]*)", text, re.MULTILINE):
        named = re.findall(r"`(\w+)`", row)
        assert named and set(named) <= set(lenmem.models.names())


def test_every_module_has_its_place():
    """In one page of the reference; all names of the top level are in theirs."""
    pages = [
        re.findall(r"automodule:: (\S+)$", path.read_text(), re.MULTILINE) for path in (DOCS / "api").rglob("*.md")
    ]
    listed = [name for page in pages for name in page]
    assert len(listed) == len(set(listed))
    documented = ("ops", "nn", "models", "tasks", "training", "evaluation")
    modules = {module.name for module in pkgutil.walk_packages(lenmem.__path__, "lenmem.") if not module.ispkg}
    assert {name for name in modules if name.split(".")[1] in documented} <= set(listed)
    top = (DOCS / "api/lenmem.md").read_text()
    assert [name for name in lenmem.__all__ if f"`lenmem.{name}`" not in top and name != "__version__"] == []


def test_commands_are_those_of_the_readme():
    """`.ci/run` runs them."""
    readme = (ROOT / "README.md").read_text().splitlines()
    for block in re.findall(r"^```sh\n(.*?)^```", (DOCS / "quickstart.md").read_text(), re.MULTILINE | re.DOTALL):
        assert set(block.splitlines()) <= set(readme)


def test_every_verb_is_in_the_quickstart():
    """With its line in `lenmem --help`."""
    section = (DOCS / "quickstart.md").read_text().partition("\n## Commands\n")[2]
    listed = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert listed == [(verb, (kind.__doc__ or "").splitlines()[0]) for verb, (_, kind) in cli.VERBS.items()]


def test_solved_seeds_are_counted():
    """A table has a cell for each row of its records, and only seeds with 95% of the answers right count."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    solved = run(DOCS / "solved.py")
    records = solved.records("lantm", "table_1b")
    lines = solved.table(records)
    assert sum(len(re.findall(r"\d of \d", line)) for line in lines) == len(records) > 90
    row = {"task": "copy", "model": "RAM/Tape", "regime": "L"}
    seeds = {"exact_match": {"seeds": [95.0, None, 94.9]}}
    record = {"row": "copy-ram_tape-warm-L", "where": row, "measured": seeds}
    assert solved.table([record])[-1] == "| copy | RAM/Tape | **warm: 1 of 3** |  |"


# Docstrings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plain, expected",
    [
        ("|x_i| * y_", [r"\|x\_i\| \* y\_", ""]),
        ("a *cell* and `k = 1`s", ["a *cell* and ``k = 1``\\ s", ""]),
        ("`unit` of\n`lenmem.ops.nam_write`", ["`unit` of", "`nam_write`", ""]),
        (
            "As in\n\n    y = x\n\n    z = y\nand so on",
            ["As in", "", "::", "", "    y = x", "", "    z = y", "", "and so on", ""],
        ),
        ("* one\n  more\n* two", ["* one more", "* two", ""]),
        ("Args:\n    key: a key,\n        or `none`.", ["Args:", "", "* ``key``: a key,", "  or ``none``.", ""]),
        ("`a`    first\n`bc`   second", ["::", "", "    `a`    first", "    `bc`   second", ""]),
    ],
)
def test_docstrings_are_read_as_plain_text(plain: str, expected: list[str]):
    lines = docstrings.restructured(plain.split("\n"), "lenmem.ops.lie")
    links = re.compile(r":py:obj:`(?:[\w.]*\.)?(\w+) <lenmem\.ops\.\w+\.\1>`")
    assert [links.sub(r"`\1`", line) for line in lines] == expected


def test_a_module_begins_with_a_table_of_its_names(monkeypatch: pytest.MonkeyPatch):
    """What is public and documented, in the order of the source, with one sentence each that starts its docstring."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    monkeypatch.setitem(sys.modules, "docstrings", docstrings)
    summary = run(DOCS / "summary.py")
    found = summary.members("lenmem.ops.lie")
    assert list(found)[:3] == ["unit", "translate", "rotate"]
    for name, line in found.items():
        assert " ".join((getattr(lenmem.ops.lie, name).__doc__ or "").split()).startswith(line.rstrip("."))
    assert summary.first_sentence("Of e.g. two. Not this.\n\nNor this.") == "Of e.g. two."
    assert summary.members("lenmem.types")["STREAMS"].startswith("The random streams")
    assert list(summary.members("lenmem.models", ["names", "make"])) == ["names", "make"]
    assert len(summary.table("lenmem.ops.lie")) == 5 + 2 * len(found)
    assert summary.table("lenmem.models", ["make"]) == []


def test_the_page_on_speed_shows_its_record(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")  # it takes timings and tables from the script beside it
    script = run(ROOT / "scripts/compare_peers.py")
    text, record = (ROOT / script.PAGE).read_text(), read_json(ROOT / script.RECORD)
    assert script.page(text, record) == text
    assert all(row["model"] in text for rows in record["tables"].values() for row in rows)
