"""The papers' figures by one command, from files with tiny untrained networks, records and runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import cli, figures, models, share, tasks
from lenmem.evaluation import plots
from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.plots import dnc
from lenmem.experiment import Evaluation, Experiment
from lenmem.options import parse
from lenmem.runs import typed_batch
from lenmem.serialize import to_plain
from lenmem.tasks.base import draw
from lenmem.training import Training
from lenmem.zoo import shelf
from tests.evaluation.paths import traces_of
from tests.marks import thorough

ROOT = Path(__file__).parents[1]
SEEDS = 2
NETWORKS = {
    "priority_sort-lantm": ("priority_sort", "lantm", {"hidden_size": 6, "embedding_size": 3}),
    "repeat_copy-slantm": ("repeat_copy", "slantm", {"hidden_size": 6, "embedding_size": 3}),
    "ctl-ndr": ("ctl", "ndr", {"hidden_size": 8, "feedforward_size": 8, "steps": 3, "heads": 2}),
    "reduce-nam_tm": ("reduce", "nam_tm", {"hidden_size": 8, "tapes": 2}),
    "copy-panm": ("panm_copy", "panm", {"hidden_size": 8, "embedding_size": 4}),
    "sort-dnc": ("dnc_sort", "dnc", {"hidden_size": 8, "slots": 5, "width": 4}),
    "sort-dnc_peephole": ("dnc_sort", "dnc", {"hidden_size": 7, "slots": 5, "width": 4}),
}


def record(name: str, task: str) -> dict:
    """What a record has beside a network's file: a curve of two seeds, and one far beyond."""

    near = curve([2, 5, 45], [[1.0, 0.9, 0.8], [0.5, 0.5, 0.5]])
    far = curve([45, 100], [[0.1, 0.2], [0.1, 0.1]])
    return {"row": name, "where": {"task": task}, "curves": [near.to_dict(), far.to_dict()]}


def curve(lengths, values, **names):
    return LengthCurve(
        label=names.get("label", ""),
        lengths=np.array(lengths),
        values={"token_accuracy": np.array(values), "exact_match": np.array(values)},
        train_lengths=(2, 5),
        samples=4,
        task=names.get("task", ""),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Files of untrained networks with two seeds, and records of the DNCs."""
    path = tmp_path_factory.mktemp("networks")
    for name, (task, model, fields) in NETWORKS.items():
        experiment = Experiment(
            tasks.make(task), models.make(model, **fields), Training(steps=1, seeds=SEEDS), Evaluation()
        )
        batch = jax.eval_shape(lambda task=experiment.task: draw(task, jax.random.key(0), jnp.array([3, 3]), 3))
        arguments = batch.inputs, batch.input_mask, batch.target_mask
        shapes = jax.eval_shape(experiment.bound_model.init, jax.random.key(0), *arguments)["params"]
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda x, rng=rng: rng.normal(0, 0.3, (SEEDS, *x.shape)).astype(x.dtype), shapes)
        known = {"experiment": to_plain(experiment), "alive": [True] * SEEDS}
        share.export_params(path / f"{name}.safetensors", params, known)
        if "dnc" in name:
            (path / f"{name}.json").write_text(json.dumps(record(name, "sort")))
    return path


@pytest.mark.parametrize(
    ("name", "runs", "length", "files"),
    [
        ("lantm-2", ["priority_sort-lantm"], 3, ["a", "b"]),
        ("dnc-3", ["sort-dnc", "sort-dnc_peephole"], None, [""]),
        *thorough(
            ("ndr-2", ["ctl-ndr"], 3, ["a", "b"]),
            ("panm-2", ["copy-panm"], 3, ["pointers", "content"]),
            ("lantm-3", ["repeat_copy-slantm"], 2, [""]),
            ("ndr-3", ["ctl-ndr"], 3, ["head-1", "head-2"]),
            ("ndr-4", ["ctl-ndr"], 3, [""]),
            ("nam-tapes", ["reduce-nam_tm"], 3, ["tape_1", "tape_1_2", "tape_2", "tape_2_2"]),
            ("dnc-4", ["sort-dnc", "sort-dnc_peephole"], 4, [""]),
            ("dnc-5", ["sort-dnc", "sort-dnc_peephole"], 4, [""]),
            ("dnc-8", ["sort-dnc", "sort-dnc_peephole"], 4, ["sort-dnc", "sort-dnc_peephole"]),
        ),
    ],
)
def test_a_figure_is_one_command(folder, tmp_path, capsys, name, runs, length, files):
    arguments = [str(folder / f"{run}.safetensors") for run in runs]
    options = [] if length is None else ["--length", str(length)]
    cli.main(["plot", *arguments, "--figure", name, "--output", str(tmp_path / "drawn"), *options])
    printed = capsys.readouterr().out.replace("\n", "")
    expected = [f"{'-'.join(filter(None, (name, part)))}.png" for part in files]
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == sorted(expected)
    for file in expected:
        assert file in printed
        assert (tmp_path / "drawn" / file).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sort-dnc", "--figure", "dnc-44"], "there is no figure 'dnc-44'. Did you mean 'dnc-4'"),
        (["sort-dnc", "--figure", "lantm-2"], "needs the trace 'write_head'"),
        (["sort-dnc", "--figure", "nam-tapes"], "needs the trace 'read_position'"),
        (["sort-dnc", "--figure", "panm-2"], "needs the trace 'pointer_weights'"),
        (["sort-dnc", "--figure", "dnc-4", "--step", "2"], "dnc-4 is not a figure of one example"),
        (["ctl-ndr", "--figure", "dnc-4", "--length", "3"], "needs the trace"),
        (["ctl-ndr", "--figure", "dnc-3"], "ctl-ndr.safetensors: no curve"),
        (["sort-dnc", "sort-dnc"], "got 2 runs; without --figure, plot draws one"),
        (["nothing", "--figure", "dnc-3"], "there is no run, file or record"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_one_line(folder, tmp_path, capsys, arguments, message):
    given = [
        word if word.startswith("-") or arguments[n - 1].startswith("--") else str(folder / f"{word}.safetensors")
        for n, word in enumerate(arguments)
    ]
    output = ["--output", str(tmp_path / "drawn")] if "--figure" in arguments else []
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plot", *given, *output])
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    text = " ".join((printed.err + printed.out).split())
    assert message in text
    assert "Traceback" not in text
    assert not (tmp_path / "drawn").exists()


def test_every_figure_is_in_the_documentation():
    page = (ROOT / "docs/figures.md").read_text()
    rows = {
        line.split("|")[1].strip(" `"): line.split("|")[3].strip()
        for line in page.splitlines()
        if line.startswith("| `")
    }
    assert rows == {name: each.shows for name, each in plots.FIGURES.items()}


def test_the_commands_of_the_documentation_are_right():
    """Their networks of this repository exist, and a typed input is one of the task of the example, `ctl`."""
    commands = re.findall(r"^lenmem plot (.*)$", (ROOT / "docs/figures.md").read_text(), re.MULTILINE)
    assert len(commands) > 8
    for command in commands:
        words = shlex.split(command)
        start = next(number for number, word in enumerate(words) if word.startswith("--"))
        options = parse(cli.VERBS["plot"][1], "plot", words[start:])
        assert options.figure in plots.FIGURES
        for source in words[:start]:
            kind, _, name = source.partition(":")
            files = [] if kind == "zoo" else [*ROOT.glob(source)]
            assert shelf.find(name) if kind == "zoo" else source.startswith("runs/") or files
            states = options.figure in ("dnc-4", "dnc-5", "dnc-6")
            assert not states or not any("stateless" in file.name for file in files), "it has no states to draw"
        if options.input is not None:
            assert typed_batch(tasks.make("ctl"), options.input).input_mask.sum() == len(options.input.split())


def test_curves_are_those_of_records(folder):
    """Both curves of a record as one, named by the network, for the task; a length that both have is taken once."""
    (own,) = figures.curves_of(str(folder / "sort-dnc_peephole.json"))
    assert (own.label, own.task, own.lengths.tolist()) == ("dnc_peephole", "sort", [2, 5, 45, 100])
    np.testing.assert_array_equal(own.values["token_accuracy"], [[1, 0.9, 0.8, 0.2], [0.5, 0.5, 0.5, 0.1]])


def test_a_record_without_a_row_has_a_curve_too(folder, capsys):
    (own,) = figures.curves_of("zoo:beyond/reverse")
    assert (own.label, own.task) == ("beyond/reverse", "reverse") and own.lengths.max() == 1024
    with pytest.raises(SystemExit):
        cli.main(
            ["plot", *(str(folder / f"{name}.safetensors") for name in ("sort-dnc", "ctl-ndr")), "--figure", "dnc-3"]
        )
    assert "ctl-ndr.safetensors: no curve" in capsys.readouterr().err, "none is left out"


# Pictures -------------------------------------------------------------------------------------------------------------


def trial(name: str, seed: int, score: float | None, states: np.ndarray) -> plots.Trial:
    """A network with given states [B, T, d]; the first half of the steps reads."""
    length = states.shape[1]
    traces = traces_of(states, encoding=length // 2, steps=(length,) * len(states))
    half = length // 2
    task = tasks.make("copy", vocabulary=4, train_lengths=(1, half))
    batch = draw(task, jax.random.key(0), np.full(len(states), half), half)
    return plots.Trial(name, seed, plots.Scene(task.spec, batch, traces, "abcd", "abcd"), half, score)


def test_best_seeds_come_first():
    """A row for each run, three panels at most; the states are those of the reading phase."""
    states = np.random.default_rng(0).normal(size=(2, 8, 5))
    trials = [trial("a", seed, score, states) for seed, score in enumerate((0.2, 0.9, 0.5, 0.4))]
    figure = plots.plot_trials([*trials, trial("b", 0, None, states)])
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["a, seed 1, 90%", "a, seed 2, 50%", "a, seed 3, 40%", "b, seed 0", "", ""]
    assert len(figure.axes[0].collections[0].get_offsets()) == 2 * 4


def test_curvature_against_accuracy():
    points = [("a", 0.1, 0.2), ("a", 0.5, 0.6), ("b", 0.9, 0.7), ("b", 1.0, 0.9)]
    figure = plots.plot_curvature(points)
    assert "Kendall's tau 1.00" in figure.get_suptitle()
    assert [line.get_xydata().tolist() for line in figure.axes[0].lines] == [
        [[0.1, 0.2], [0.5, 0.6]],
        [[0.9, 0.7], [1.0, 0.9]],
    ]
    with pytest.raises(ValueError, match="b has no curve of accuracy by length"):
        plots.plot_curvature([*points, ("b", 0.3, None)])


def test_a_panel_for_each_task():
    curves = [
        curve([2, 5], [[1, value]], label=label, task=task)
        for task, label, value in (("sort", "dnc", 0.5), ("copy", "dnc", 0.25), ("copy", "lstm", 0.75))
    ]
    figure = plots.plot_curve_panels(curves)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["sort", "copy"]
    drawn = [[line.get_ydata()[-1] for line in ax.lines] for ax in figure.axes]
    assert drawn == [[0.5], [0.25, 0.75]]
    colors = [[line.get_color() for line in ax.lines] for ax in figure.axes]
    assert colors[0][0] == colors[1][0] != colors[1][1], "a network has one colour"
    with pytest.raises(ValueError, match="no curves"):
        plots.plot_curve_panels([])


def test_search_is_scored_by_its_hits(tmp_path, monkeypatch):
    other, search = (curve([2, 5], [[1, 0.5]], label="dnc", task=task) for task in ("sort", "search"))
    search.values["hit_rate"] = np.array([[0.75, 0.25]])
    drawn = []
    monkeypatch.setattr(dnc, "plot_curve_panels", lambda *given: drawn.append(plots.plot_curve_panels(*given)))
    plots.FIGURES["dnc-3"].draw([other, search], lambda part: None)
    (figure,) = drawn
    assert [ax.lines[0].get_ydata().tolist() for ax in figure.axes] == [[1, 0.5], [0.75, 0.25]]
    assert [ax.get_ylabel() for ax in figure.axes] == ["token accuracy", "hit rate"]
    (tmp_path / "own.json").write_text(json.dumps({"row": "own", "where": {}, "curves": [search.to_dict()]}))
    np.testing.assert_allclose(figures._scores(str(tmp_path / "own.json")), [0.5])


def test_steps_until_columns_halt():
    """Two columns that halt after one and three of four steps: two on average."""
    halting = np.zeros((1, 4, 3))
    halting[0, 0, 0], halting[0, :3, 1] = 1, 1 / 3
    traces = {
        "attention": np.zeros((1, 4, 2, 3, 3)),
        "column": np.array([[True, True, False]]),
        "halting": halting,
    }
    whole = {name: values for name, values in traces.items() if name != "halting"}
    figure = plots.plot_steps_used({("act", 2): traces, ("act", 5): whole, ("ndr", 2): whole})
    lines = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert lines["act"] == [[2, 2], [5, 4]]
    assert lines["ndr"] == [[2, 4]]
    with pytest.raises(ValueError, match="no traces"):
        plots.plot_steps_used({})
