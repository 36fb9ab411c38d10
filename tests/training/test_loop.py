"""The training loop: reproducibility, interruption and resumption, and refusals."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import signal
import struct
import types
from pathlib import Path
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import lenmem
from lenmem import Experiment, Optimizer, Training, models, runs, stopping, tasks
from lenmem.evaluation.metrics import score
from lenmem.keys import namespaced
from lenmem.serialize import to_plain
from lenmem.tasks.dyck import Dyck
from lenmem.tasks.ndr import TableLookup
from lenmem.training import DivergedError, checkpoint, loop, program, run_directory, train
from lenmem.training.run_directory import Recorder, fresh_directory
from lenmem.training.step import (
    Member,
    Record,
    State,
    data_key,
    device_mesh,
    initial_state,
    keep_best,
    make_advance,
    objective,
    replicated,
    selected,
)
from tests.marks import thorough
from tests.training import tiny
from tests.training.tiny import TASK, Bag, Cusp, Poisoned, Telling


def experiment(model: nn.Module | None = None, **training: Any) -> Experiment:
    """The tiny experiment, with a bag of tokens."""
    return tiny.experiment(Bag() if model is None else model, **training)


def load(directory: Path, **options: Any) -> lenmem.Run:
    """`lenmem.load` with the class of the bag."""
    return lenmem.load(directory, modules=[Bag], **options)


@pytest.fixture(scope="module", autouse=True)
def every_program_is_kept():
    """Not only the latest ones, since these tests train the same in any order."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_advance", "_initial"):
            patch.setattr(program, f"_known{name}", functools.cache(getattr(program, name)))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run, and its directory."""
    directory = tmp_path_factory.mktemp("finished")
    return train(experiment(), directory=directory / "run"), directory / "run"


@functools.cache
def trained(task=TASK, **fields):
    """The result of a training without a directory."""
    return train(dataclasses.replace(experiment(**fields), task=task))


def test_the_same_key_gives_the_same_result(finished):
    result, _ = finished
    again = train(experiment())
    chex.assert_trees_all_equal(result.params, again.params)
    assert [entry["loss"] for entry in result.history] == [entry["loss"] for entry in again.history]


def test_seeds_and_keys_differ(finished):
    result, _ = finished
    other = train(experiment(), jax.random.key(7))
    for leaf, of_other in zip(jax.tree.leaves(result.params), jax.tree.leaves(other.params), strict=True):
        assert not np.array_equal(leaf[0], leaf[1])
        assert not np.array_equal(leaf, of_other)


def test_steps_equal_a_plain_loop_of_optax(finished):
    """Independent twin: one seed, Python loop, no vmap, no scan over steps, no donation."""
    result, _ = finished
    setup = experiment()
    model, optimizer = setup.bound_model, optax.adam(1e-2)
    key = namespaced(jax.random.key(0), 1)
    state = initial_state(model, TASK, optimizer, key[None], keep_best=False)
    params = jax.tree.map(lambda x: x[0], state.members.params)
    slots = optimizer.init(params)
    batches = functools.partial(TASK.source("train", 4).batch, data_key(key))

    @jax.jit
    def update(params, slots, batch):
        def loss_of(params):
            outputs = model.apply({"params": params}, batch.inputs, batch.input_mask, batch.target_mask)
            return TASK.loss(outputs, batch)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, slots = optimizer.update(grads, slots)
        return optax.apply_updates(params, updates), slots, loss

    losses = []
    for step in range(6):
        params, slots, loss = update(params, slots, batches(step))
        losses.append(float(loss))
    chex.assert_trees_all_close(params, jax.tree.map(lambda x: x[1], result.params), rtol=2e-4, atol=2e-5)
    logged = [entry["loss"][1] for entry in result.history]
    np.testing.assert_allclose(logged, np.mean(np.reshape(losses, (3, 2)), axis=1), rtol=1e-4)


def stop_at_4(entry):
    """As the user would: a signal, which is heeded after the call."""
    if entry["step"] == 4:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(finished, tmp_path, monkeypatch):
    result, directory = finished
    ticks = itertools.count()  # a clock that every look at it puts forward
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: next(ticks)))
    part = train(experiment(), directory=tmp_path / "run", report=stop_at_4)
    assert part.interrupted
    assert part.step == 4
    whole = train(experiment(), directory=tmp_path / "run", resume=True)
    assert not whole.interrupted
    spent = [part.history[-1]["seconds"], whole.history[-1]["seconds"], whole.seconds]
    assert spent == sorted(set(spent)), "the second session counts on from the first"
    chex.assert_trees_all_equal(whole.params, result.params)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert [line["loss"] for line in lines] == [line["loss"] for line in expected]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_any_optax_transformation_trains_and_resumes(tmp_path):
    """Bit for bit. The saved run measures and predicts without it, and says that it must be passed again."""
    noise = optax.add_noise(0.01, 0.5, jax.random.key(0))  # its state has a key; the last rule needs the loss
    setup = experiment(optimizer=optax.chain(noise, optax.lion(1e-2), optax.contrib.reduce_on_plateau()))
    result = train(setup, directory=tmp_path / "whole")
    train(setup, directory=tmp_path / "part", report=stop_at_4)
    run = load(tmp_path / "part")
    assert run.step == 4
    assert lenmem.measure(run.experiment, run.params).seeds == 2
    with pytest.raises(ValueError, match=r"not saved; to go on training, pass the same one again: lenmem\.load\("):
        train(run.experiment, directory=tmp_path / "part", resume=True)
    resumed = train(setup, directory=tmp_path / "part", resume=True)
    chex.assert_trees_all_equal(resumed.params, result.params)

    run = load(tmp_path / "whole", optimizer=setup.training.optimizer)
    assert run.experiment == setup
    lenmem.export_run(run, tmp_path / "run.safetensors", with_optimizer=True)
    with pytest.raises(ValueError, match="not saved"):
        lenmem.import_run(tmp_path / "run.safetensors", tmp_path / "again", modules=[Bag])
    optimizer = setup.training.optimizer
    lenmem.import_run(tmp_path / "run.safetensors", tmp_path / "again", modules=[Bag], optimizer=optimizer)
    again = train(setup, directory=tmp_path / "again", resume=True)
    chex.assert_trees_all_equal(again.params, result.params)


def test_an_optimizer_is_passed_only_where_none_was_saved(finished):
    _, directory = finished
    with pytest.raises(ValueError, match=r"was trained with Optimizer\(name='adam'"):
        load(directory, optimizer=optax.lion(1e-2))
    with pytest.raises(ValueError, match="Training.optimizer is 'lion'; it must be a"):
        Training(optimizer="lion")  # pyright: ignore[reportArgumentType]


def test_metrics_after_the_checkpoint_are_dropped_on_resume(finished, tmp_path):
    part = train(experiment(steps=4), directory=tmp_path / "run")
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "loss": [9, 9]}\n{"step": 8, "lo')
    again = train(experiment(steps=4), directory=tmp_path / "run", resume=True)
    assert [entry["step"] for entry in again.history] == [2, 4]
    chex.assert_trees_all_equal(part.params, again.params)


def test_a_loaded_run_gives_the_same_outputs(finished):
    result, directory = finished
    run = load(directory)
    assert run.experiment == experiment()
    assert run.step == 6
    chex.assert_trees_all_equal(run.params, result.params)
    batch = TASK.source("validation", 3).batch(jax.random.key(0), 0)
    expected = run.experiment.bound_model.apply(
        {"params": jax.tree.map(lambda x: x[1], result.params)}, batch.inputs, batch.input_mask, batch.target_mask
    )
    np.testing.assert_array_equal(run.apply(batch.inputs, batch.input_mask, batch.target_mask, seed=1), expected)
    with pytest.raises(ValueError, match="seeds 0 to 1"):
        run.seed_params(2)


def test_a_directory_in_use_or_used_is_refused(finished, tmp_path):
    _, directory = finished
    with pytest.raises(ValueError, match="already holds a run"):
        train(experiment(), directory=directory)
    with pytest.raises(ValueError, match=r"nothing was changed: training.steps: the run has 6, asked for 8$"):
        train(experiment(steps=8), directory=directory, resume=True)
    with pytest.raises(ValueError, match=r"holds no run that could be resumed"):
        train(experiment(), directory=tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="it was begun with another key"):
        train(experiment(), jax.random.key(3), directory=directory, resume=True)
    assert load(directory).step == 6

    def second(entry):
        with pytest.raises(ValueError, match="in use by another run"):
            train(experiment(), directory=tmp_path / "run", resume=True)

    train(experiment(steps=2), directory=tmp_path / "run", report=second)
    with pytest.raises(ValueError, match="needs the directory"):
        train(experiment(), resume=True)


def test_the_curve_of_another_network_is_not_taken_for_that_of_a_run(tmp_path):
    """Such as that of a file, which `lenmem evaluate FILE --save` writes."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "curve.json").write_text("{}")
    with pytest.raises(ValueError, match="run holds the curve of another network; choose another directory"):
        train(experiment(), directory=tmp_path / "run")
    assert fresh_directory(tmp_path / "run") == tmp_path / "run-2"


def test_the_directory_of_a_training_that_starts_is_not_chosen(tmp_path):
    with Recorder(tmp_path / "run", experiment(), jax.random.key(0)):
        assert fresh_directory(tmp_path / "run") == tmp_path / "run-2"
    assert fresh_directory(tmp_path / "run") == tmp_path / "run"


def test_a_directory_that_could_not_be_claimed_is_not_locked(tmp_path, monkeypatch):
    """An error while an earlier, killed run is removed leaves the directory free."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "metrics.jsonl").touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("not yours")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(PermissionError, match="not yours"):
            train(experiment(), directory=directory, resume=True)
    assert train(experiment(), directory=directory, resume=True).step == 6


def test_a_signal_in_the_last_call_is_heeded_too(tmp_path):
    def stop_at_6(entry):
        if entry["step"] == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    result = train(experiment(), directory=tmp_path / "run", report=stop_at_6)
    assert result.interrupted and result.step == 6
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") == 6


def test_a_start_that_fails_leaves_nothing_locked(tmp_path):
    """A model that cannot be saved is found before the directory is made. Jupyter keeps the error, and its frames."""

    class Named(Bag):
        note: Any = None

    with pytest.raises(ValueError, match="cannot be saved"):
        train(experiment(Named(note=tmp_path)), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(experiment(), directory=tmp_path / "run")


def test_a_file_of_a_file_manager_does_not_hinder_saving(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".DS_Store").write_text("")
    train(experiment(), directory=tmp_path)
    assert checkpoint.latest(tmp_path / "checkpoints") == 6


def test_checkpoints_are_written_while_it_trains(tmp_path):
    """A later save begins when the one before is on disk, so something is there during the third call."""
    there, folder = [], tmp_path / "run" / "checkpoints"
    train(experiment(), directory=tmp_path / "run", report=lambda _: there.append(checkpoint.steps(folder)))
    assert there[0] == [] and there[2] in ([2], [2, 4])


def test_snapshots_from_the_middle_can_be_loaded(tmp_path):
    """After the call that holds the step: of two steps each here."""
    train(experiment(keep_steps=(2, 3), keep_checkpoints=1), directory=tmp_path / "run")
    short = train(experiment(steps=2))
    middle = load(tmp_path / "run", step=2)
    assert middle.step == 2
    chex.assert_trees_all_equal(middle.params, short.params)
    with pytest.raises(ValueError, match="it has 2, 4, 6"):
        load(tmp_path / "run", step=5)
    with pytest.raises(ValueError, match="is not a run"):
        load(tmp_path)


def test_a_seed_that_dies_keeps_its_last_good_parameters(tmp_path):
    """Biases start at different values and move by the learning rate, so seeds pass the limit at different steps."""
    setup = experiment(Poisoned(limit=0.2), seeds=8, steps=6, optimizer=Optimizer("sgd", learning_rate=0.3))
    result = train(setup, directory=tmp_path / "run")
    assert 0 < result.alive.sum() < 8
    assert np.all(np.isfinite(result.params["bias"]))
    deaths = [death for entry in result.history for death in entry.get("died", [])]
    assert sorted(death["seed"] for death in deaths) == np.flatnonzero(~result.alive).tolist()
    alone = train(experiment(Poisoned(limit=99), seeds=8, steps=6, optimizer=Optimizer("sgd", learning_rate=0.3)))
    np.testing.assert_allclose(result.params["bias"][result.alive], alone.params["bias"][result.alive], rtol=1e-6)
    for death in deaths:
        assert death["loss"] == "nan"
    json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1], parse_constant=pytest.fail)


def test_the_run_fails_only_when_all_seeds_have_died():
    with pytest.raises(DivergedError, match=r"seed 0 at step 0 .*seed 1 at step 0"):
        train(experiment(Poisoned(limit=0.0)))


def test_a_gradient_that_is_not_finite_is_a_death_too():
    """The loss is finite at the first step; a step with that gradient would spoil the parameters."""
    with pytest.raises(DivergedError, match=r"seed 0 at step 0 \(loss 1\.\d+, gradient norm nan\).*the cause in"):
        train(experiment(Cusp()))


def test_an_update_that_is_not_finite_is_a_death_too():
    """Without `eps`, Adam divides zero by zero where the gradient is exactly 0: for symbols that do not occur."""
    with pytest.raises(
        DivergedError, match=r"seed 0 at step 0 \(loss 1\.\d+, gradient norm 0\.\d+\).*lower learning rate"
    ):
        train(experiment(optimizer=Optimizer("adam", eps=0.0), batch_size=1))


def test_a_network_larger_than_the_memory_is_refused_before_it_is_made():
    """Adam keeps three numbers for each of 4 * 10^12 parameters."""
    with pytest.raises(ValueError, match=r"state of all seeds need [\d,]+ GiB; this machine has \d+"):
        train(experiment(models.make("lstm", hidden_size=10**6)))


def test_only_experiments_are_trained():
    task: Any = tasks.make("copy")
    with pytest.raises(ValueError, match=r"train takes an Experiment\(task, model\), got a Copy"):
        train(task)


def test_a_comparison_goes_on_after_a_network_that_diverged(tmp_path):
    cells: Any = {("copy", "bad"): experiment(Poisoned(limit=0.0)), ("copy", "good"): experiment()}
    for _ in range(2):
        found = runs.compare(cells, lambda task, model: tmp_path / model)
        assert str(found["copy", "bad"]).startswith("every seed met a non-finite")
        assert isinstance(found["copy", "good"], lenmem.LengthCurve)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "good"]
    with pytest.raises(DivergedError, match="bad on copy: every seed"):
        runs.compare(dict([*cells.items()][:1]), lambda task, model: tmp_path / model)


def test_a_comparison_writes_over_no_run_of_another_experiment_that_diverged(tmp_path):
    for limit in (0.0, -1.0):
        with pytest.raises(DivergedError):
            runs.compare({("copy", "bad"): experiment(Poisoned(limit=limit))}, lambda task, model: tmp_path / model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "bad-2"]


def test_a_run_whose_seeds_all_diverged_is_a_run_and_cannot_be_continued(tmp_path):
    """It has a checkpoint with its experiment, also if they diverged before the first one."""
    with pytest.raises(DivergedError) as first:
        train(experiment(Poisoned(limit=0.0)), directory=tmp_path / "run")
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(DivergedError, match=re.escape(str(first.value))):
        train(experiment(Poisoned(limit=0.0)), directory=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="cannot be resumed with these settings; nothing was changed"):
        train(experiment(), directory=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics
    assert not lenmem.load(tmp_path / "run", modules=[Poisoned]).alive.any()


def test_the_parameters_of_a_dead_seed_keep_their_type():
    params = {"weight": jnp.ones((2, 3), jnp.bfloat16), "count": jnp.ones((2,), jnp.int32)}
    masked = runs.without_dead(params, np.array([True, False]))
    assert [leaf.dtype for leaf in jax.tree.leaves(masked)] == [jnp.int32, jnp.bfloat16]
    assert np.isnan(np.asarray(masked["weight"], np.float32)[1]).all() and (masked["weight"][0] == 1).all()


def test_a_model_whose_variables_cannot_all_be_trained_is_refused():
    class Averages(nn.Module):
        @nn.compact
        def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
            return nn.BatchNorm(use_running_average=not train)(jnp.zeros((*target_mask.shape, 5)))

    class Fixed(nn.Module):
        def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
            return jnp.zeros((*target_mask.shape, 5))

    with pytest.raises(ValueError, match="Averages has variables in batch_stats; only `params` can be trained"):
        train(experiment(Averages()))
    with pytest.raises(ValueError, match="Fixed has no parameters"):
        train(experiment(Fixed()))


def test_selection_keeps_the_best_and_ties_go_to_the_latest():
    setup = experiment()
    state = initial_state(
        setup.bound_model, TASK, optax.sgd(1.0), jax.random.split(jax.random.key(0), 3), keep_best=True
    )
    members = state.members._replace(alive=jnp.array([True, True, False]))
    state = state._replace(members=members._replace(params=jax.tree.map(lambda x: 0 * x + 1, members.params)))
    state = keep_best(state, jnp.array([0.5, 0.5, 0.5]))
    members = state.members
    state = state._replace(members=members._replace(params=jax.tree.map(lambda x: 0 * x + 2, members.params)))
    state = keep_best(state, jnp.array([0.4, 0.5, 0.9]))
    leaf = jax.tree.leaves(state.members.best)[0]
    np.testing.assert_array_equal(leaf[0], 1)
    np.testing.assert_array_equal(leaf[1], 2)
    np.testing.assert_array_equal(state.members.best_score, np.array([0.5, 0.5, -np.inf], np.float32))


def test_a_window_selects_by_the_mean_of_the_latest_scores():
    setup, keys = experiment(), jax.random.split(jax.random.key(0), 2)
    state = initial_state(setup.bound_model, TASK, optax.sgd(1.0), keys, keep_best=True, window=2)
    kept, scores = [], np.array([[0.9, 0.1], [0.1, 0.2], [0.7, 0.3], [0.2, 0.0], [0.6, 0.9]])
    for number, seen in enumerate(scores):
        params = jax.tree.map(lambda x, n=number: 0 * x + n, state.members.params)
        state = keep_best(state._replace(members=state.members._replace(params=params)), jnp.array(seen))
        kept.append(np.asarray(jax.tree.leaves(state.members.best)[0]).reshape(2, -1)[:, 0].tolist())
    # Means of two in a row: 0.5, 0.4, 0.45, 0.4 for the first seed; 0.15, 0.25, 0.15, 0.45 for the second.
    assert kept[1:] == [[1, 1], [1, 2], [1, 2], [1, 4]]
    np.testing.assert_allclose(state.members.best_score, [0.5, 0.45], rtol=1e-6)


def test_selection_by_loss_keeps_the_smallest():
    fields = {"selection": "validation", "validate_every": 2, "selection_metric": "loss", "validation_batches": 1}
    setup = experiment(seed=1, **fields)
    result = train(setup)
    seen = np.array([entry["validation/loss"] for entry in result.history])
    batch = TASK.source("validation", setup.training.batch_size).batch(jax.random.key(setup.training.seed), 0)
    model = setup.bound_model

    def loss(params):
        outputs = model.apply({"params": params}, batch.inputs, batch.input_mask, batch.target_mask)
        return TASK.loss(outputs, batch)

    np.testing.assert_allclose(jax.jit(jax.vmap(loss))(result.params), seen.min(axis=0), rtol=1e-5)


@pytest.mark.parametrize(("metric", "best"), [("loss", 4), ("perplexity", 4), ("token_accuracy", 6)])
def test_the_best_loss_and_perplexity_are_the_smallest_and_other_metrics_the_largest(metric, best, monkeypatch):
    """Of all validations; the last step is validated, too. The parameter of this program is its number of steps."""
    fields = {"selection": "validation", "validate_every": 2, "selection_metric": metric}
    setup = experiment(steps=7, seeds=1, **fields)
    unscored = Member({"x": jnp.zeros(1)}, (), jnp.ones(1, bool), (), {"x": jnp.zeros(1)}, jnp.full(1, -jnp.inf), ())  # pyright: ignore

    def advance(state, count):
        step, rows = state.step + count, np.ones((count, 1))
        members = state.members._replace(params={"x": jnp.full(1, step)})
        return State(step, members), Record(rows, rows, rows > 0)  # pyright: ignore

    seen = iter([5.0, 2.0, 7.0, 3.0])
    monkeypatch.setattr(loop, "validation_scores", lambda *_, **__: {metric: np.array([next(seen)])})
    monkeypatch.setattr(loop, "check_selection", lambda _: None)  # the task has no perplexity
    pretended = program.Program(lambda: State(jnp.zeros((), int), unscored), advance, len)  # pyright: ignore
    result = loop.run(pretended, setup, Recorder(None, setup, jax.random.key(0), resume=False, tensorboard=False))
    scored = {entry["step"]: entry[f"validation/{metric}"] for entry in result.history}
    assert scored == {2: [5], 4: [2], 6: [7], 7: [3]}
    assert result.params["x"] == [best]


def test_the_pace_is_that_of_the_calls_after_the_first_which_compiles(monkeypatch):
    """Calls of two steps that take 100, 4, 1 and 2 seconds: the median of 0.5, 2 and 1 steps a second."""
    now, taken = [0.0], iter([100.0, 4.0, 1.0, 2.0, 50.0])
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    member = Member({"x": jnp.zeros(1)}, (), jnp.ones(1, bool), (), (), jnp.full(1, -jnp.inf), ())  # pyright: ignore

    def advance(state, count):
        now[0] += next(taken)
        rows = np.ones((count, 1))
        return State(state.step + count, state.members), Record(rows, rows, rows > 0)  # pyright: ignore

    def ran(steps):
        setup = experiment(steps=steps, seeds=1)
        pretended = program.Program(lambda: State(jnp.zeros((), int), member), advance, len)  # pyright: ignore
        return loop.run(pretended, setup, Recorder(None, setup, jax.random.key(0), resume=False, tensorboard=False))

    whole = ran(8)
    assert whole.updates_per_second == 1 and whole.seconds == 107
    assert [entry["seconds"] for entry in whole.history] == [100, 104, 105, 107]
    assert np.isnan(ran(2).updates_per_second), "there was only the first call"
    taken = iter([100.0, 4.0, 50.0, 100.0, 50.0])
    assert ran(5).updates_per_second == 0.5, "the shorter last call compiles again"
    assert np.isnan(ran(3).updates_per_second)


def test_a_finished_run_knows_its_pace_and_takes_no_more_time(finished, tmp_path):
    _, directory = finished
    shutil.copytree(directory, tmp_path / "run")
    history = run_directory.read_metrics(directory)
    times = dict(zip((2, 4, 6), (10.0, 12.0, 13.0), strict=True))
    run_directory.write_metrics(tmp_path / "run", [line | {"seconds": times[line["step"]]} for line in history])
    saved = checkpoint.read_manifest(directory / "checkpoints")["seconds"]
    for _ in range(2):
        again = train(experiment(), directory=tmp_path / "run", resume=True)
        assert again.seconds == saved
        assert again.updates_per_second == 1.5, "the median of 1 and 2 steps a second"


def test_a_call_that_compiles_again_can_be_stopped(monkeypatch):
    """The last call is shorter, so it compiles; a copy of the state is ready in case of a signal."""
    member = Member({"x": jnp.zeros(1)}, (), jnp.ones(1, bool), (), (), jnp.full(1, -jnp.inf), ())  # pyright: ignore
    ready = []

    class Stop(stopping.Stop):
        def withdraw(self, save=None):
            ready.append(save is not None)

    @contextlib.contextmanager
    def heeded():
        yield Stop(watched=True)

    def advance(state, count):
        rows = np.ones((count, 1))
        return State(state.step + count, state.members), Record(rows, rows, rows > 0)  # pyright: ignore

    monkeypatch.setattr(stopping, "heeded", heeded)
    setup = experiment(steps=7, seeds=1)
    pretended = program.Program(lambda: State(jnp.zeros((), int), member), advance, len)  # pyright: ignore
    loop.run(pretended, setup, Recorder(None, setup, jax.random.key(0), resume=False, tensorboard=False))
    assert ready[:4] == [False, False, False, True]


def test_a_dead_seed_has_no_validation():
    fast = Optimizer("sgd", learning_rate=0.3)
    rule = {"selection": "validation", "validate_every": 2}
    died = train(experiment(Poisoned(limit=0.2), seeds=8, steps=6, optimizer=fast, **rule))
    assert 0 < died.alive.sum() < 8
    scores = np.array(died.history[-1]["validation/token_accuracy"], float)
    np.testing.assert_array_equal(np.isnan(scores), ~died.alive)
    np.testing.assert_array_equal(np.isnan(died.best_scores), ~died.alive)


def test_a_fixed_set_smaller_than_a_batch_is_refused_before_the_training():
    task = tasks.make("reduce", fixed_set=True, test_size=8)
    setup = dataclasses.replace(experiment(batch_size=16, validate_every=2, validation_split="test"), task=task)
    with pytest.raises(ValueError, match="a fixed set of 8 examples is smaller than a batch of 16"):
        loop.check_selection(setup)


def test_a_seed_without_a_score_keeps_its_last_parameters():
    last, best = {"x": np.array([[1.0], [2.0]])}, {"x": np.array([[3.0], [4.0]])}
    assert selected(last, best, np.array([-np.inf, 0.5]))["x"].tolist() == [[1], [4]]
    assert selected(last, (), np.array([-np.inf, 0.5]))["x"].tolist() == [[1], [2]]


def test_a_window_longer_than_the_training_is_refused():
    with pytest.raises(ValueError, match=r"selection_window=4 validations, one each 2 steps, are more than 6 steps"):
        experiment(selection="validation", validate_every=2, selection_window=4)
    experiment(steps=7, selection="validation", validate_every=2, selection_window=4)  # the last step is validated


@pytest.mark.parametrize(
    ("rule", "split"), [("validation", "validation"), ("validation", "train"), ("running_ood", "test")]
)
def test_the_selected_parameters_are_those_of_the_best_score(rule, split):
    setup = experiment(selection=rule, validate_every=2, selection_metric="token_accuracy", validation_batches=2)
    if rule == "validation":
        setup = dataclasses.replace(setup, training=dataclasses.replace(setup.training, validation_split=split))
    result = train(setup)
    seen = np.array([entry[f"{split}/token_accuracy"] for entry in result.history])
    got = score(setup.bound_model, result.params, TASK, 8, 4, 0, split=split)
    np.testing.assert_allclose(got["token_accuracy"], seen.max(axis=0), atol=1e-6)
    np.testing.assert_allclose(result.best_scores, seen.max(axis=0), atol=1e-6)


def test_sown_losses_are_added_and_not_logged():
    class Sowing(nn.Module):
        output_size: int = 5

        @nn.compact
        def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
            bias = self.param("bias", nn.initializers.ones, (self.output_size,))
            self.sow("losses", "size", jnp.sum(bias))
            self.sow("losses", "halves", jnp.full((2,), 0.25))
            return jnp.broadcast_to(bias, (*target_mask.shape, self.output_size))

    batch = TASK.source("train", 4).batch(jax.random.key(0), 0)
    variables = jax.jit(Sowing().init)(jax.random.key(0), batch.inputs, batch.input_mask, batch.target_mask)
    total, logged = objective(Sowing(), TASK, variables["params"], batch, {})
    np.testing.assert_allclose(logged, np.log(5), rtol=1e-5)
    np.testing.assert_allclose(total - logged, 5.5, rtol=1e-5)


def test_every_step_and_stream_has_noise_of_its_own_and_a_rule_is_given_the_whole_loss():
    rule = optax.GradientTransformationExtraArgs(
        lambda _: jnp.zeros(()), lambda grads, *_, value, **__: (jax.tree.map(jnp.zeros_like, grads), value)
    )
    state = initial_state(Telling(), TASK, rule, jax.random.split(jax.random.key(0), 2), keep_best=False)
    advance = make_advance(Telling(), TASK, rule, 2)
    sizes = []
    for _ in range(3):
        state, record = advance(state, 1)
        sizes += record.grad_norm[0].tolist()
        np.testing.assert_allclose(
            np.abs(state.members.optimizer_state - record.loss[0]), record.grad_norm[0], rtol=1e-5
        )
    assert min(sizes) > 0 and len(set(sizes)) == 6


def test_seeds_have_data_of_their_own():
    keys = [data_key(key) for key in program.seed_keys(Training(seeds=3), jax.random.key(0))]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 3


def test_lengths_grow_while_it_trains():
    history = trained(TASK, model=Telling("length"), growing=6, log_every=1, devices=1).history
    lengths = np.array([entry["grad_norm"] for entry in history])
    assert np.all(lengths[:2] == 1) and np.all(lengths[2:4] <= 2) and lengths.max() > 1


def test_two_devices_give_the_losses_of_one():
    one, two = trained(devices=1), trained()
    assert two.experiment.training.device_count() == 2
    for a, b in zip(one.history, two.history, strict=True):
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
    chex.assert_trees_all_close(one.params, two.params, rtol=1e-4, atol=1e-6)


def test_what_was_trained_is_saved_if_the_report_fails(finished, tmp_path):
    """Between two checkpoints; the run goes on from there."""

    def fail(entry):
        if entry["step"] == 4:
            raise OSError("no space left on the plot's device")

    result, _ = finished
    with pytest.raises(OSError, match="no space left"):
        train(experiment(checkpoint_every=0), directory=tmp_path / "run", report=fail)
    steps = []
    again = train(
        experiment(checkpoint_every=0),
        directory=tmp_path / "run",
        resume=True,
        report=lambda x: steps.append(x["step"]),
    )
    assert steps == [6]
    np.testing.assert_allclose(*([entry["loss"] for entry in run.history] for run in (again, result)), rtol=1e-5)


def test_a_run_goes_on_with_another_number_of_devices(finished, tmp_path):
    result, _ = finished
    assert result.experiment.training.device_count() == 2
    part = train(experiment(devices=1), directory=tmp_path / "run", report=stop_at_4)
    assert part.interrupted
    whole = train(experiment(devices=2), directory=tmp_path / "run", resume=True)
    for a, b in zip(whole.history, result.history, strict=True):
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
    chex.assert_trees_all_close(whole.params, result.params, rtol=1e-4, atol=1e-6)
    assert load(tmp_path / "run").experiment.training.devices == 2


@pytest.mark.thorough
def test_seeds_are_spread_where_the_batch_cannot_be():
    """Devices then need no communication during training."""
    setup = experiment(batch_size=3, seeds=4, devices=2)
    mesh = device_mesh(2, 3)
    assert mesh is not None
    assert dict(mesh.shape) == {"seed": 2, "data": 1}
    optimizer = setup.training.optimizer.build(6)
    state = initial_state(setup.bound_model, TASK, optimizer, jax.random.split(jax.random.key(0), 4), keep_best=False)
    advance = make_advance(setup.bound_model, TASK, optimizer, 3, mesh=mesh)
    program = advance.lower(replicated(state, mesh), 2).compile().as_text()
    of_steps, _, around = program.partition("ENTRY")
    collective = r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    assert "while" in around
    assert not re.findall(collective, of_steps)
    one, two = (trained(batch_size=3, seeds=4, devices=n) for n in (1, 2))
    np.testing.assert_allclose(*([entry["loss"] for entry in run.history] for run in (one, two)), rtol=1e-5)


@pytest.mark.parametrize(
    ("at_once", "fields"),
    [
        *thorough((1, {"devices": 1}), (1, {})),
        (2, {"seeds": 4, "devices": 1, "selection": "validation", "validate_every": 2}),
    ],
)
def test_seeds_in_groups_give_the_losses_of_all_at_once(at_once, fields):
    """On one device, on two, and with a choice of the parameters."""
    groups, whole = (trained(**fields, seeds_at_once=at_once), trained(**fields))
    for a, b in zip(groups.history, whole.history, strict=True):
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
        np.testing.assert_allclose(a["grad_norm"], b["grad_norm"], rtol=1e-4)
    chex.assert_trees_all_close(groups.params, whole.params, rtol=1e-4, atol=1e-6)


def test_validation_runs_on_one_device(monkeypatch):
    """XLA distributes no kernel, so a program over all devices would not compile for a TPU."""
    seen = []

    def validate(apply, params, *_, **__):
        seen.extend(jax.tree.leaves(params))
        return {"exact_match": np.zeros(2), "token_accuracy": np.zeros(2)}

    monkeypatch.setattr(loop, "validation_scores", validate)
    trained(devices=2, selection="validation", validate_every=6)
    assert seen and {len(leaf.sharding.device_set) for leaf in seen} == {1}


def test_seeds_in_groups_are_spread_over_devices():
    """If the batch cannot be: two devices, one seed of a group on each."""
    fields = {"batch_size": 3, "seeds": 4, "seeds_at_once": 2}
    assert experiment(**fields).training.device_count() == 2
    assert experiment(**fields | {"seeds_at_once": 1}).training.device_count() == 1
    groups, whole = trained(**fields, devices=2), trained(batch_size=3, seeds=4, devices=1)
    np.testing.assert_allclose(*([entry["loss"] for entry in run.history] for run in (groups, whole)), rtol=1e-5)


@pytest.mark.thorough
def test_one_seed_at_a_time_needs_less_memory():
    setup = experiment(Bag(width=64), seeds=4, batch_size=256)
    optimizer = setup.training.optimizer.build(6)
    keys = jax.random.split(jax.random.key(0), 4)
    state = initial_state(setup.bound_model, TASK, optimizer, keys, keep_best=False, abstract=True)

    def temporary(at_once: int | None) -> int:
        advance = make_advance(setup.bound_model, TASK, optimizer, 256, at_once=at_once)
        return advance.lower(state, 2).compile().memory_analysis().temp_size_in_bytes

    assert temporary(1) < 0.5 * temporary(None)


@pytest.mark.parametrize("otherwise", [{"seeds_at_once": 1}, {"widths": 2}], ids=str)
def test_a_run_goes_on_with_what_only_says_how_it_is_computed(finished, tmp_path, otherwise):
    result, _ = finished
    part = train(experiment(), directory=tmp_path / "run", report=stop_at_4)
    assert part.interrupted
    whole = train(experiment(**otherwise), directory=tmp_path / "run", resume=True)
    np.testing.assert_allclose(*([entry["loss"] for entry in run.history] for run in (whole, result)), rtol=1e-5)


ALIGNED = Dyck(kinds=1, longest=6, examples=16)


@pytest.mark.parametrize(
    ("task", "fields"),
    [(TASK, {}), *thorough((TASK, {"seeds_at_once": 1}), (TASK, {"devices": 1}), (ALIGNED, {}))],
)
def test_narrow_batches_give_the_losses_of_wide_ones(task, fields):
    """On two devices, one seed at a time on them, on one device, and for answers that are cut with the inputs."""
    wide, narrow = trained(task, **fields), trained(task, **fields, widths=3)
    np.testing.assert_allclose(*([entry["loss"] for entry in run.history] for run in (wide, narrow)), rtol=1e-5)
    chex.assert_trees_all_close(wide.params, narrow.params, rtol=1e-4, atol=1e-6)


class Width(nn.Module):
    """Its answers have the width of the inputs, which other models may not know."""

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
        """[B, M, K]: the score of all classes but the last, whatever the parameter is."""
        zero = 0 * self.param("unused", nn.initializers.zeros_init(), ())
        scores = jnp.full((*target_mask.shape, 8), inputs.shape[1] / 6 + zero)
        return scores.at[..., -1].set(0)


@pytest.mark.thorough
def test_a_batch_is_as_narrow_as_those_of_all_seeds_allow():
    task = TableLookup(batches="balanced")  # up to 6 tokens
    setup = Experiment(task, Width(), Training(steps=16, batch_size=1, seeds=2, log_every=1, widths=5))
    keys = [namespaced(jax.random.key(0), seed) for seed in range(2)]
    batch_of = jax.jit(lambda key, step: task.source("train", 1).batch(data_key(key), step))
    loss = jax.jit(task.loss)
    expected, widths = [], []
    for step in range(16):
        batches = [batch_of(key, step) for key in keys]
        longest = max(int(batch.input_mask.sum()) for batch in batches)
        widths.append(min(width for width in (2, 3, 4, 5, 6) if width >= longest))
        outputs = jnp.full((1, 1, 8), widths[-1] / 6).at[..., -1].set(0)
        expected.append([float(loss(outputs, batch)) for batch in batches])
    assert len(set(widths)) > 2
    np.testing.assert_allclose([entry["loss"] for entry in train(setup).history], expected, rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_compiles_once(devices, caplog):
    setup = experiment()
    optimizer = setup.training.optimizer.build(6)
    state = initial_state(setup.bound_model, TASK, optimizer, jax.random.split(jax.random.key(0), 2), keep_best=False)
    mesh = device_mesh(devices, 4)
    state = replicated(state, mesh)
    advance = make_advance(setup.bound_model, TASK, optimizer, 4, mesh=mesh)
    with jax.log_compiles():
        for _ in range(3):
            state, _ = advance(state, 2)
    assert len([line for line in caplog.messages if re.match(r"Compiling \S*advance", line)]) == 1


def test_what_is_trained_again_is_not_compiled_again(caplog):
    """From another key, or with other notes: neither the steps nor the initial state."""

    def compiled() -> int:
        return sum(bool(re.match(r"Compiling \S*(advance|initial)", line)) for line in caplog.messages)

    rule = Optimizer("sgd", learning_rate=0.0123)  # of no other test
    with jax.log_compiles():
        train(experiment(steps=2, optimizer=rule))
        first = compiled()
        train(experiment(steps=2, optimizer=rule, keep_checkpoints=1, checkpoint_every=0), jax.random.key(9))
        assert compiled() == first
        train(experiment(steps=3, optimizer=rule))
        assert compiled() >= first + 2 >= 4, "an initial state and the steps, for each"


def events_in(path: Path) -> dict[tuple[str, int], float]:
    """(tag, step) -> value of a file of TensorBoard: records of a length, its checksum, an event and its checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    data, found = path.read_bytes(), {}
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        data = data[16 + size :]
    return found


def test_tensorboard_has_the_metrics_of_every_seed(tmp_path):
    history = train(experiment(), directory=tmp_path / "run", tensorboard=True).history
    (path,) = (tmp_path / "run").glob("events.*")
    expected = {
        (f"{name}/seed{seed}", entry["step"]): float(value)
        for entry in history
        for name in ("loss", "grad_norm", "alive")
        for seed, value in enumerate(entry[name])
    }
    assert len(expected) == 3 * 3 * 2 and events_in(path) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be an integer, at least 1"),
        ({"steps": -1}, "steps is -1; it must be an integer, at least 0"),
        ({"checkpoint_every": 3}, "multiple of log_every=2, got 3"),
        ({"selection": "best"}, "'best'; allowed are last, validation, running_ood"),
        ({"selection": "validation"}, "needs validate_every"),
        ({"seeds": 3, "seeds_at_once": 2}, "seeds_at_once=2 does not divide seeds=3"),
        ({"devices": 0}, "devices is 0; it must be an integer, at least 1 or None"),
        ({"keep_steps": (2, 7)}, "keep_steps has 7; the training has steps 1 to 6"),
        ({"keep_steps": (0,)}, "keep_steps has 0"),
    ],
)
def test_wrong_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        experiment(**fields)


def test_a_device_count_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="there are 2"):
        train(experiment(devices=16))
    with pytest.raises(ValueError, match="devices=2 does not divide batch_size=3 times seeds=1"):
        train(experiment(devices=2, batch_size=3, seeds=1))
    assert Training(batch_size=3).device_count() == 1
    assert Training(batch_size=3, seeds=4).device_count() == 2


def test_an_unknown_split_to_validate_on_is_refused():
    with pytest.raises(ValueError, match="'od_easy' is not a split of"):
        train(experiment(validate_every=2, validation_split="od_easy"))


def test_an_unknown_selection_metric_is_refused():
    with pytest.raises(ValueError, match="'accuracy'; allowed are exact_match, token_accuracy, loss"):
        train(experiment(selection="validation", validate_every=2, selection_metric="accuracy"))


def test_a_model_that_cannot_take_the_task_is_refused():
    class Picky(nn.Module):
        @nn.nowrap
        def supports(self, spec):
            return "needs integers"

    with pytest.raises(ValueError, match="Picky cannot take Copy: needs integers"):
        Experiment(TASK, Picky())


def test_the_experiment_binds_the_spec_of_its_task():
    setup = experiment()
    assert setup.model.spec is None
    assert setup.bound_model.spec == TASK.spec
    assert dataclasses.replace(setup, model=Bag(spec=TASK.spec)).bound_model == setup.bound_model


def test_what_is_not_of_the_run_is_left_alone(tmp_path):
    for name in ("snapshots/mine.txt", "checkpoints/.git/HEAD"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("mine")
    train(experiment(keep_steps=(2,)), directory=tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "6")
    train(experiment(keep_steps=(2,)), directory=tmp_path, resume=True)
    assert (tmp_path / "snapshots" / "mine.txt").exists()
    assert (tmp_path / "checkpoints" / ".git" / "HEAD").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_snapshots_that_remain_of_a_run_are_kept(finished, tmp_path, resume):
    result, _ = finished
    checkpoint.save(tmp_path / "snapshots", 2, {"params": result.params}, {})
    with pytest.raises(ValueError, match="holds the snapshots of a run, without the run; choose another directory"):
        train(experiment(), directory=tmp_path, resume=resume)
    assert checkpoint.steps(tmp_path / "snapshots") == [2]
    assert run_directory.holds_run(tmp_path)


@pytest.mark.parametrize("left", ["another experiment", "a finished run"])
def test_what_remains_of_a_run_without_checkpoints_is_kept(finished, tmp_path, left):
    result, _ = finished
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "loss": [1, 1]}\n')
    steps = 7 if left == "another experiment" else 6
    about = {"experiment": to_plain(experiment(steps=steps))}
    checkpoint.save(tmp_path / "snapshots", 2, {"params": result.params}, about)
    if left == "a finished run":
        (tmp_path / "curve.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{left}.*; choose another directory"):
        train(experiment(), directory=tmp_path, resume=True)
    assert checkpoint.steps(tmp_path / "snapshots") == [2]
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_run_killed_before_its_first_checkpoint_starts_again(finished, tmp_path):
    result, _ = finished
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 2, "loss": [1, 1]}\n')
    other, about = {"params": jax.tree.map(np.zeros_like, result.params)}, {"experiment": to_plain(experiment())}
    checkpoint.save(tmp_path / "run" / "snapshots", 2, other, about)
    again = train(experiment(), directory=tmp_path / "run", resume=True)
    assert not checkpoint.steps(tmp_path / "run" / "snapshots"), "of another run"
    assert [entry["step"] for entry in again.history] == [2, 4, 6]
    chex.assert_trees_all_equal(again.params, result.params)
