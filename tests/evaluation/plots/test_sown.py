"""Everything that a model sows is drawn, with descriptive names."""

from __future__ import annotations

import functools
import types
from typing import Any

import jax
import numpy as np
import pytest

from lenmem import Experiment, Training, drawing, models, runs, tasks
from lenmem.evaluation import plots
from lenmem.evaluation.plots.registry import CONTEXT, PICTURES, draws
from lenmem.evaluation.traces import _flatten
from lenmem.types import Batch, Spec
from tests.marks import often
from tests.models.columns import Runs

TASKS = [*(tasks.make(name) for name in ("copy", "ctl", "dyck", "word_problem")), Runs()]


def scene(traces, inputs=(3, 1, 2), answers=(3, 1, 2, 4), **spec) -> plots.Scene:
    """A network that copied three tokens and then an end symbol, with its traces."""
    options = {"vocabulary": 4, "outputs": "tokens", "output_size": 5, "shared_ids": True, "end_id": 4} | spec
    batch = Batch(
        np.array([inputs]),
        np.ones((1, len(inputs)), bool),
        np.array([answers]),
        np.ones((1, len(answers)), bool),
        np.ones((1, len(answers)), bool),
    )
    return plots.Scene(Spec(**options), batch, traces, list("abcd"), list("abcd4"), "a title")


@pytest.fixture
def asked(monkeypatch):
    """Records the pictures that are requested, as (function, options), instead of drawing them."""
    calls = []
    for module in [value for value in vars(plots).values() if isinstance(value, types.ModuleType)]:
        for name in [name for name in vars(module) if name.startswith("plot_")]:
            monkeypatch.setattr(module, name, lambda *given, _name=name, **options: calls.append((_name, options)))
    return calls


example = functools.cache(runs.example_batch)


def sown(model, task, batch) -> dict[str, tuple[int, ...]]:
    """Names and shapes of everything a model sows on a batch of one, without running it."""
    bound = Experiment(task, model, Training(steps=1)).bound_model
    arguments = (batch.inputs, batch.input_mask, batch.target_mask)
    params = jax.eval_shape(bound.init, jax.random.key(0), *arguments)["params"]
    run = lambda params: bound.apply({"params": params}, *arguments, mutable=["traces"])[1]  # noqa: E731
    traces = jax.eval_shape(lambda params: _flatten(dict(run(params)).get("traces", {})), params)
    return {name: value.shape for name, value in traces.items()}


@pytest.mark.parametrize("name", often(models.names()))
def test_whatever_a_model_sows_is_drawn_or_listed(name, asked, tmp_path):
    model = models.make(name)
    repeated = ("layers", "encoder_layers", "decoder_layers", "steps")  # two are traced sooner, and sow the same names
    model = model.clone(**{field: 2 for field in repeated if getattr(model, field, 0) > 2})
    task = next(task for task in TASKS if models.supports(model, task.spec) is None)
    batch = example(task, 3)
    shapes = sown(model, task, batch)
    ones = {}
    for sown_name, shape in shapes.items():  # `collect` moves the batch axis, of length 1, to the front
        axis, masks = shape.index(1), ("valid", "column")
        ones[sown_name] = np.ones((1, *shape[:axis], *shape[axis + 1 :]), bool if sown_name in masks else float)
    if "decoding" in ones:
        ones["decoding"] = np.arange(ones["decoding"].shape[1])[None] >= 4
        ones["token"] = np.zeros(ones["decoding"].shape, int)
    given = plots.Scene(task.spec, batch, ones, task.input_names, task.answer_names)
    files = []
    drawn = plots.draw(given, lambda file: files.append(file) or tmp_path / file)
    assert drawn | CONTEXT.keys() >= shapes.keys()
    assert len(files) == len(set(files)) == len(asked)
    assert bool(files) == bool(shapes.keys() - CONTEXT.keys())


def test_computation_tokens_have_a_name():
    """As steps of a recurrent network and as columns of an encoder."""
    task = tasks.make("copy", vocabulary=4, train_lengths=(1, 3))
    batch = runs.example_batch(task, 2)
    a, b = map(str, np.asarray(batch.inputs[0]).tolist())
    for name in ("lstm", "transformer"):
        experiment = Experiment(task, models.make(name, computation_steps=1), Training(steps=1))
        params = jax.jit(experiment.bound_model.init)(
            jax.random.key(0), batch.inputs, batch.input_mask, batch.target_mask
        )
        run: Any = types.SimpleNamespace(experiment=experiment, seed_params=lambda _, params=params: params["params"])
        given = drawing.scene(run, batch, None, "", required=False)
        assert given.inputs == [a, b, "·", "·"]
        assert given.steps is None or given.steps[1:5] == [a, b, "·", "·"]
        assert (given.steps is None) == (name == "transformer")


def test_read_weights_name_tokens_on_both_axes(asked, tmp_path):
    steps = 4 + 4
    traces = {
        "token": np.array([[4, 3, 1, 2, 5, 6, 6, 6]]),
        "valid": np.ones((1, steps), bool),
        "decoding": np.arange(steps)[None] >= 4,
        "read_weights": np.full((1, steps, 5), 0.2),
        "gate": np.zeros((1, steps)),
    }
    plots.draw(scene(traces), lambda file: tmp_path / file)
    (_, options), (_, strips) = asked
    assert options["rows"] == ["begin", "d", "b", "c", "→ d", "→ b", "→ c", "→ end"]
    assert options["columns"] == ["start", "begin", "d", "b", "c"]
    assert options["mark"] == strips["mark"] == 4
    assert strips["columns"] == options["rows"]


def test_attention_without_columns_is_drawn(tmp_path):
    """Sown as docs/own_model.md suggests."""
    rng = np.random.default_rng(0)
    traces = {
        "attention": rng.random((1, 4, 3)),
        "layers/attention": rng.random((1, 2, 5, 5)),
        "link": rng.random((1, 20, 6, 6)),
        "gates": rng.random((1, 4, 2)),
    }
    files = []
    assert plots.draw(scene(traces), lambda file: files.append(tmp_path / file) or files[-1]) == set(traces)
    assert [file.name for file in files] == ["steps.png", "attention.png", "layers-attention.png", "link.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_pointers_are_drawn(tmp_path):
    traces = {"pointer_weights": np.ones((1, 4, 2, 5)), "address": np.ones((1, 4, 2), int)}
    files = []
    assert plots.draw(scene(traces), lambda file: files.append(tmp_path / file) or files[-1]) == set(traces)
    assert [file.name for file in files] == ["pointer_weights.png", "address.png"]


@pytest.mark.parametrize(("which", "head"), [("pointer_weights", "pointer"), ("relation_weights", "content head")])
def test_each_pointer_has_a_panel_with_its_weights(which, head):
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 4, 3))  # [B, M, heads, slots]
    figure = plots.plot_pointers({which: weights}, 1, which=which, rows=list("wxyz"), columns=list("abcde"))
    panels = figure.axes[:3]
    assert [ax.get_title() for ax in panels] == [f"{head} {number}" for number in (1, 2, 3)]
    for number, ax in enumerate(panels):
        np.testing.assert_allclose(ax.images[0].get_array(), weights[1, :, number])
    assert [label.get_text() for label in panels[0].get_yticklabels()] == list("wxyz")


def test_what_names_could_belong_to_several_axes_is_numbered():
    known = scene({}, answers=(3, 1, 2), end_id=None, output_size=4)
    assert known.naming(3) == (None, 3)
    assert known.naming(5) == (["begin", "d", "b", "c", "end"], 5)
    assert scene({}).naming(4) == (["d", "b", "c", "end"], 4)
    assert scene({}).naming(9) == (None, 9)


def drawn_files(traces, tmp_path) -> list[str]:
    files = []
    assert plots.draw(scene(traces), lambda file: files.append(file) or tmp_path / file) == set(traces)
    return files


def test_a_name_with_other_axes_is_not_taken_for_a_known_trace(asked, tmp_path):
    """A user's network may sow anything under the name of another network's trace."""
    traces = {
        "read_weights": np.ones((1, 7)),
        "pointer_weights": np.ones((1, 4, 6)),
        "attention": np.ones((1, 5, 5)),
        "column": np.ones((1, 5), bool),
    }
    files = []
    plots.draw(scene(traces), lambda file: files.append(file) or tmp_path / file)
    assert files == ["read_weights.png", "pointer_weights.png", "attention.png"]
    assert {name for name, _ in asked} == {"plot_maps"}


def test_a_picture_is_drawn_where_its_traces_are(tmp_path, monkeypatch):
    monkeypatch.setattr("lenmem.evaluation.plots.registry.PICTURES", (found := []))
    monkeypatch.setattr("lenmem.evaluation.plots.sown.PICTURES", found)
    calls = []
    draws({"where": 3}, also={"how": 2})(lambda scene, target: calls.append(set(scene.traces)))
    draws({"where": 3}, examples=True)(lambda scene, target: calls.append("examples"))
    draws({"head": 2}, layers=True)(lambda scene, target: calls.append("layers"))
    draws({"where": 3})(lambda scene, target: calls.append("taken already"))
    where, how = np.ones((1, 4, 2)), np.ones((1, 4))
    assert drawn_files({"where": where, "how": how}, tmp_path) == []
    assert drawn_files({"how": how}, tmp_path) == ["steps.png"]
    assert drawn_files({"a/head": how, "b/head": how}, tmp_path) == []
    plots.draw_examples(scene({"where": where}), lambda file: tmp_path / file)
    assert calls == [{"where", "how"}, "layers", "examples"]


def test_pictures_of_many_examples_say_what_they_need(tmp_path):
    assert any(picture.examples for picture in PICTURES)
    with pytest.raises(ValueError, match="need the traces 'controller_state' and .*; this model has gate"):
        plots.draw_examples(scene({"gate": np.ones((1, 4))}), lambda file: tmp_path / file)


def test_a_pointer_at_no_address_is_blank(tmp_path):
    figure = plots.plot_strips({"pointer": np.array([[np.nan, 2.0], [np.nan, np.nan]])})
    assert np.isnan(np.asarray(figure.axes[0].images[0].get_array().filled(np.nan))).sum() == 3
    plots.plot_strips({"pointer": np.full((3, 1), np.nan)}, tmp_path / "a.png")


@pytest.mark.parametrize(
    ("traces", "example", "which", "message"),
    [
        ({"pointer_weights": np.ones((1, 4, 2, 5))}, 0, "weights", "allowed are pointer_weights, relation_weights"),
        ({"pointer_weights": np.ones((1, 4, 2, 5))}, 1, "pointer_weights", "between 0 and 0, got 1"),
        ({"gate": np.ones((1, 4))}, 0, "relation_weights", "needs the trace 'relation_weights'; this model has gate"),
    ],
)
def test_no_such_pointers(traces, example, which, message):
    with pytest.raises(ValueError, match=message):
        plots.plot_pointers(traces, example, which=which)
