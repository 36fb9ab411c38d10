"""Sweeps: members equal runs trained alone, interrupted sweeps continue, grouping, and errors."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

import lenmem
from lenmem import Experiment, LengthCurve, Optimizer, cli, models, runs, tasks
from lenmem.cli.training import _over
from lenmem.sweep import Outcome, best, combine, plan, sweep
from lenmem.sweep.combinations import as_python
from lenmem.sweep.table import columns, rule, sweep_table
from lenmem.tasks.dyck import Dyck
from lenmem.tasks.ndr import TableLookup
from lenmem.training import DivergedError, Result, train
from lenmem.training.lanes import advance_lanes, initial_lanes, lanes_program, replaced, untraceable
from lenmem.training.loop import run
from lenmem.training.run_directory import Recorder, read_metrics
from tests.training.tiny import Poisoned, experiment, with_steps

RATE, DECAY = "training.optimizer.learning_rate", "training.optimizer.weight_decay"


class Bag(nn.Module):
    """A bag of tokens with three fields: a factor, a threshold that is branched on, and a size."""

    scale: float = 1.0
    threshold: float = 0.5
    width: int = 3
    output_size: int = 5

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train: bool = False):
        """[B, M, K]."""
        init = nn.initializers.normal(self.scale)
        states = nn.Embed(8, self.width, embedding_init=init)(inputs) * input_mask[..., None]
        if self.threshold > 1:
            states = -states
        answer = nn.Dense(self.output_size)(states.sum(axis=1)) * self.scale
        return jnp.broadcast_to(answer[:, None], (*target_mask.shape, self.output_size))


BASE = experiment(
    Bag(), selection="validation", selection_metric="loss", validate_every=2, validation_batches=1, keep_steps=(2,)
)
OVER = {RATE: (0.01, 0.05), "model.scale": (0.5, 2.0)}


@pytest.fixture(scope="module", autouse=True)
def no_pictures_of_curves():
    """Pictures take most of a second each, and are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lenmem.evaluation.plots.plot_curves", lambda curves, path: None)
        yield


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A finished sweep of four combinations, its outcomes and its directory."""
    directory = tmp_path_factory.mktemp("swept") / "sweep"
    said = []
    outcomes = sweep(BASE, OVER, directory, say=said.append)
    assert said == ["program 1 of 1: 4 combinations at once, 2 seed(s) each"]
    return outcomes, directory


def test_an_optax_transformation_is_not_swept_over():
    """Neither its numbers, which are inside functions, nor several transformations. Other fields can be swept."""
    setup = experiment(optimizer=optax.lion(1e-2))
    with pytest.raises(
        ValueError, match="keeps its numbers inside of functions; sweep over the fields of lenmem.Optim"
    ):
        combine(setup, {RATE: (0.1, 0.2)})
    with pytest.raises(ValueError, match="cannot be an optax.GradientTransformation: a saved sweep cannot"):
        combine(setup, {"training.optimizer": (optax.lion(0.1), optax.lion(0.2))})
    assert [c.name for c in combine(setup, {"training.seed": (1, 2)})] == ["seed=1", "seed=2"]


@pytest.mark.thorough
def test_members_equal_runs_trained_alone(swept, tmp_path):
    outcomes, directory = swept
    outcome = outcomes[1]
    alone, curve = runs.train_and_measure(outcome.combination.experiment, tmp_path / "alone")
    assert curve is not None
    member = lenmem.load(directory / outcome.combination.name, modules=[Bag])
    assert member.experiment == outcome.combination.experiment
    assert member.experiment.model.scale == 2.0
    assert member.step == 6
    chex.assert_trees_all_close(member.params, alone.params, rtol=1e-5, atol=1e-6)
    middle = lenmem.load(tmp_path / "alone", step=2, modules=[Bag])
    chex.assert_trees_all_close(
        lenmem.load(member.directory, step=2, modules=[Bag]).params, middle.params, rtol=1e-5, atol=1e-6
    )
    lines = [json.loads(line) for line in (member.directory / "metrics.jsonl").read_text().splitlines()]
    for line, entry in zip(lines, alone.history, strict=True):
        for name in ("loss", "validation/loss", "grad_norm", "alive"):
            np.testing.assert_allclose(line[name], entry[name], rtol=1e-5)
    chex.assert_trees_all_close(outcome.curve.values, curve.values)
    # Training of the member can continue like that of the run: its whole state is saved.
    longer = train(outcome.combination.experiment, directory=member.directory, resume=True)
    chex.assert_trees_all_equal(longer.params, member.params)


def trained(setup: Experiment) -> Result:
    """Two lanes of each seed."""
    key = jax.random.key(0)
    return run(lanes_program(setup, {RATE: (0.01, 0.05)}, key), setup, Recorder(None, setup, key))


@pytest.mark.thorough
def test_seeds_in_groups_give_what_all_at_once_give():
    groups, whole = (trained(with_steps(experiment(Bag(), seeds_at_once=n), 2)) for n in (1, None))
    np.testing.assert_allclose(groups.history[-1]["loss"], whole.history[-1]["loss"], rtol=1e-5)
    chex.assert_trees_all_close(groups.params, whole.params, rtol=1e-5, atol=1e-6)


def test_lanes_of_several_widths_compute_one_of_them():
    """Under `vmap`, a switch on a value that differs between lanes or seeds would compute all branches."""
    setup = dataclasses.replace(experiment(Bag(output_size=8), widths=3), task=TableLookup(batches="balanced"))
    numbers = {RATE: (0.01, 0.05)}
    state = initial_lanes(setup, numbers, jax.random.split(jax.random.key(0), 2), abstract=True)
    assert advance_lanes(setup, numbers).lower(state, 1).as_text("hlo").count(" conditional(") == 1


def test_the_table_names_the_best_by_the_rule(swept):
    outcomes, directory = swept
    with open(directory / "sweep.csv") as file:
        lines = list(csv.DictReader(file))
    assert [(line["learning_rate"], line["scale"]) for line in lines] == [
        ("0.01", "0.5"),
        ("0.01", "2.0"),
        ("0.05", "0.5"),
        ("0.05", "2.0"),
    ]
    losses = [np.median(outcome.scores["loss"]) for outcome in outcomes]
    np.testing.assert_allclose([float(line["validation_loss"]) for line in lines], losses, rtol=1e-5)
    assert [line["best"] for line in lines].index("1") == int(np.argmin(losses))
    assert {line["seeds alive"] for line in lines} == {"2/2"}
    assert (directory / "sweep.png").stat().st_size > 1000
    assert not (directory / "programs").exists()


def test_a_sweep_that_was_cut_off_goes_on_and_a_finished_one_trains_nothing(swept, tmp_path):
    outcomes, directory = swept

    def cut_off(entry):
        if entry["step"] == 4:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        sweep(BASE, OVER, tmp_path / "sweep", report=lambda setup: cut_off)
    seen = []
    sweep(BASE, OVER, tmp_path / "sweep", report=lambda setup: seen.append)
    assert [entry["step"] for entry in seen] == [6]  # the state of step 4 was saved
    for outcome in outcomes:
        name = outcome.combination.name
        whole, resumed = (lenmem.load(root / name, modules=[Bag]) for root in (directory, tmp_path / "sweep"))
        chex.assert_trees_all_equal(whole.params, resumed.params)
    again = sweep(BASE, OVER, directory, report=lambda setup: pytest.fail("trains again"))
    chex.assert_trees_all_equal(again[3].scores, outcomes[3].scores)
    (tmp_path / "sweep" / outcomes[1].combination.name / "curve.json").unlink()
    with pytest.raises(FileNotFoundError, match="has scores and no curve; `lenmem evaluate .* --save`"):
        sweep(BASE, OVER, tmp_path / "sweep", report=lambda setup: pytest.fail("trains again"))
    with pytest.raises(ValueError, match="holds another sweep"):
        sweep(BASE, {RATE: (0.01,)}, directory)
    with pytest.raises(ValueError, match="is not empty and holds no sweep"):
        sweep(BASE, OVER, tmp_path)


def test_values_may_be_arrays_and_the_directory_text(tmp_path):
    """Numbers of NumPy and JAX are those of Python."""
    (outcome,) = sweep(experiment(Bag(), steps=1, log_every=1), {RATE: np.array([0.01])}, str(tmp_path / "sweep"))
    assert outcome.combination.values == {RATE: 0.01}
    assert as_python(jnp.arange(2)) == (0, 1) and as_python([jnp.int32(3), "x", (1, 2)]) == (3, "x", (1, 2))


def test_what_is_trained_together():
    over = {RATE: (0.01, 0.02), DECAY: (0.0, 0.1, 0.2), "model.width": (3, 4), "model.threshold": (0.2, 2.0)}
    programs, remarks = plan(combine(BASE, over))
    assert len(remarks) == 1
    assert "model.threshold are trained one after another" in remarks[0]
    sizes = [(len(program.combinations), sorted(program.numbers)) for program in programs]
    # For each width and threshold: decay 0, which removes a part of the optimiser, and the other decays.
    assert sizes == 4 * [(2, [RATE])] + 4 * [(4, [RATE, DECAY])]
    assert sum(len(program.combinations) for program in programs) == 24
    for program in programs:
        for index, member in enumerate(program.combinations):
            numbers = {path: values[index] for path, values in program.numbers.items()}
            assert replaced(program.combinations[0].experiment, numbers) == member.experiment


@pytest.mark.thorough
def test_numbers_of_the_models_can_be_traced():
    dnc = models.make("dnc", hidden_size=4, slots=2, width=2, read_heads=1, regularization=0.1)
    assert untraceable(replaced(BASE, {"model": dnc}), "model.regularization") is None
    assert untraceable(experiment(models.make("lantm", hidden_size=4)), "model.read_gate_bias") is None


@pytest.mark.thorough
def test_a_combination_that_dies_is_not_the_best_and_the_others_go_on(tmp_path):
    setup = experiment(Poisoned(limit=0.2), steps=2, devices=1, optimizer=Optimizer("sgd", learning_rate=0.1))
    told = []
    over = {RATE: (1e-4, 9.0), "model.output_size": (5,)}
    outcomes = sweep(setup, over, tmp_path / "together", report=lambda _: told.append)
    good, bad = (outcome.combination.name for outcome in outcomes)
    deaths = [(death["combination"], death["seed"]) for entry in told for death in entry["died"]]
    assert sorted(deaths) == [(bad, 0), (bad, 1)]
    kept = [
        sorted(death["seed"] for entry in read_metrics(tmp_path / "together" / name) for death in entry.get("died", []))
        for name in (good, bad)
    ]
    assert kept == [[], [0, 1]], "seeds of the combination, not lanes of the program"
    assert np.isfinite(outcomes[0].scores["loss"]).all()
    assert np.isnan(outcomes[1].scores["loss"]).all()
    assert best(outcomes) is outcomes[0]
    alone = Outcome(outcomes[1].combination, {}, None)
    assert best([alone, outcomes[0]]) is outcomes[0]
    for _ in range(2):  # The second call trains nothing.
        with pytest.raises(DivergedError, match="every seed of all 1 combinations"):
            sweep(setup, {"model.limit": (0.0,)}, tmp_path / "alone")
    with pytest.raises(DivergedError, match="every seed of all 2 combinations"):
        sweep(setup, {RATE: (9.0, 10.0), "model.output_size": (5,)}, tmp_path / "lost")
    for rate in (9.0, 10.0):
        history = read_metrics(tmp_path / "lost" / f"learning_rate={rate},output_size=5")
        assert sorted(death["seed"] for entry in history for death in entry.get("died", [])) == [0, 1]


def test_a_sweep_with_an_optax_rule_goes_on(tmp_path):
    setup = experiment(Bag(), steps=1, log_every=1, optimizer=optax.sgd(0.1))
    (outcome,) = sweep(setup, {"model.width": (3,)}, tmp_path / "sweep")
    (again,) = sweep(setup, {"model.width": (3,)}, tmp_path / "sweep", report=lambda _: pytest.fail("trains again"))
    chex.assert_trees_all_equal(again.scores, outcome.scores)


def test_a_sweep_is_not_continued_with_other_data(tmp_path):
    data = tmp_path / "data.tsv"
    rows = [f"{'a ' * n}b\tb {'a ' * n}" for n in range(1, 17)]
    data.write_text("\n".join(rows))

    def setup():
        task, model = tasks.make("pairs", path=str(data)), models.make("gru", layers=1)
        return dataclasses.replace(experiment(Bag(), steps=1, log_every=1), task=task, model=model)

    sweep(setup(), {RATE: (0.01,)}, tmp_path / "sweep")
    sweep(setup(), {RATE: (0.01,)}, tmp_path / "sweep", report=lambda _: pytest.fail("trains again"))
    data.write_text("\n".join([*rows, "b\tb"]))
    with pytest.raises(ValueError, match="holds a sweep of data that have changed since"):
        sweep(setup(), {RATE: (0.01,)}, tmp_path / "sweep")


def test_ties_go_to_the_smaller_loss(swept):
    outcomes, _ = swept
    training = dataclasses.replace(BASE.training, selection_metric="exact_match")
    combination = dataclasses.replace(outcomes[0].combination, experiment=dataclasses.replace(BASE, training=training))

    def outcome(exact, loss):
        return Outcome(combination, {"exact_match": np.array(exact), "loss": np.array(loss)}, None)

    tried = [outcome([1.0, 1.0, 0.5], [0.2] * 3), outcome([1.0] * 3, [0.1] * 3), outcome([1, np.nan, np.nan], [0] * 3)]
    assert best(tried) is tried[1]


def test_lengths_shorter_than_those_of_training_are_in_no_column():
    values = {"exact_match": np.array([[0.0, 1.0, 0.5, 0.25]])}
    curve = LengthCurve("", np.array([1, 2, 3, 5]), values, train_lengths=(2, 3), samples=1)
    found = columns(Outcome(combine(BASE, {RATE: (0.01,)})[0], {}, curve))
    assert found == {"exact_match at training lengths": [0.75], "exact_match beyond": [0.3125]}  # lengths 4 and 5


def test_the_smallest_perplexity_is_the_best(swept):
    outcomes, _ = swept
    training = dataclasses.replace(BASE.training, selection_metric="perplexity")
    setup = dataclasses.replace(BASE, training=training)
    combination = dataclasses.replace(outcomes[0].combination, experiment=setup)
    tried = [
        Outcome(combination, {"perplexity": np.array([value] * 2), "loss": np.array([0.1] * 2)}, None)
        for value in (900.0, 1.5, np.nan)
    ]
    assert best(tried) is tried[1]
    assert rule(setup).startswith("the smallest perplexity on the split validation")
    console = Console(width=200, file=io.StringIO())
    console.print(sweep_table(tried))
    text = console.file.getvalue()
    assert "perplexity %" not in text and " 900 " in text and " 1.5 " in text


CONFIG = """
from lenmem import Evaluation, Experiment, Training, models, tasks

experiment = Experiment(
    tasks.make("copy", vocabulary=4, train_lengths=(1, 3)),
    models.make("gru", hidden_size=4, embedding_size=2),
    Training(steps=2, batch_size=4, log_every=2, devices=1),
    Evaluation(lengths=(2, 5), samples=4),
)
"""


@pytest.mark.thorough
def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(CONFIG)
    cli.main(["sweep", "tiny.py", "--over", "training.optimizer.learning-rate", "0.01", "0.02", "--over", "seed", "2"])
    printed = capsys.readouterr().out
    assert "2 combinations at once, 2 seed(s) each" in printed
    member = "runs/sweeps/tiny/learning_rate=0.02"
    assert f"best: {member[:-4]}" in printed
    assert runs.open_run(member).experiment.training.seeds == 2
    cli.main(["evaluate", member, "--lengths", "3", "--samples", "2"])
    for words, message in [
        (["--over", "training.optimizer.learning_rat", "1"], "Did you mean 'learning_rate'?"),
        (["--over", "model.hidden_size", "4.5"], "hidden_size takes an integer, at least 1, got '4.5'"),
        ([], "nothing to sweep over"),
    ]:
        with pytest.raises(SystemExit) as stopped:
            cli.main(["sweep", "tiny.py", *words])
        assert stopped.value.code == 2
        error = " ".join(capsys.readouterr().err.split())
        assert message in error
        assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["modle.hidden_size", "1"], "Experiment has no 'modle'. Did you mean 'model'?"),
        (["model.width.x", "1"], "int has no 'x'"),
        ([RATE, "fast"], "learning_rate takes a finite number, at least 0, got 'fast'"),
        (["training.optimizer.name", "adm"], "name takes one of "),
        ([RATE, "-1"], "learning_rate is -1.0; it must be a finite number, at least 0"),
        ([RATE], f"no values for {RATE}"),
        ([RATE, "1", "1.0"], "occurs twice"),
        (["seed", "many"], "takes one number of seeds, got many"),
        (["seed", "0"], "Training.seeds is 0; it must be an integer, at least 1"),
    ],
)
def test_what_cannot_be_swept_is_one_message(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        combine(*_over(BASE, [words]))


def test_what_selects_is_known_before_anything_is_trained(tmp_path):
    for field, message in (
        ("selection_metric", "allowed are exact_match, token_accuracy, loss"),
        ("validation_split", "not a split"),
    ):
        with pytest.raises(ValueError, match=message):
            sweep(replaced(BASE, {f"training.{field}": "od"}), OVER, tmp_path / "sweep")
    odd = dataclasses.replace(BASE, task=Dyck(), evaluation=lenmem.Evaluation(lengths=(3,)))
    with pytest.raises(ValueError, match="even number of brackets, got the length 3"):
        sweep(odd, OVER, tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_seeds_in_groups_are_swept_together():
    grouped = replaced(BASE, {"training.seeds": 4, "training.seeds_at_once": 2})
    assert untraceable(grouped, RATE) is None


def test_values_are_read_as_the_types_of_their_fields():
    _, over = _over(BASE, [["training.keep-steps", "2 4", "2"], ["training.optimizer.clip_norm", "None", "1"]])
    assert over == {"training.keep_steps": [(2, 4), (2,)], "training.optimizer.clip_norm": [None, 1.0]}
    names = [combination.name for combination in combine(BASE, over)]
    assert names[:2] == ["keep_steps=2_4,clip_norm=None", "keep_steps=2_4,clip_norm=1.0"]
