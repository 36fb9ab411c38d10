"""The map: sizes and budgets of its networks, training by the clock, records, and what is said of a cell."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem import map as maps
from lenmem import models, tasks, workers
from lenmem.cli import main
from lenmem.cli.tables import Map
from lenmem.evaluation.lengths import LengthCurve
from lenmem.evaluation.plots import plot_reach
from lenmem.experiment import Experiment
from lenmem.map import (
    NETWORKS,
    TASKS,
    Budget,
    Cell,
    Outcomes,
    Trainer,
    cells,
    curve_lengths,
    described,
    markdown,
    outcomes,
    reach_of,
    read,
    run_cell,
    run_map,
    save_map,
    sized,
    task_of,
)
from lenmem.map.cells import settings_of
from lenmem.options import parse
from lenmem.training.optimizer import Cosine
from lenmem.training.step import initial_state

TINY = Budget(parameters=2000, seconds=0.2, search_seconds=0.05, rates=(1e-3, 1e-2), seeds=2, batch_size=4, samples=4)
CELL = Cell("copy", "lstm")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The record of a cell, and the directory it is in."""
    results = tmp_path_factory.mktemp("map")
    said: list[str] = []
    record = run_cell(CELL, TINY, results, said.append)
    assert len(said) == 2 and all(line.startswith("lstm on copy: ") for line in said)
    return record, results


def curve(*medians: float, spread: float = 0.0) -> LengthCurve:
    """A curve at lengths 4, 8, 12, .. for training lengths up to 8."""
    values = np.array([[m - spread for m in medians], medians, [m + spread for m in medians]])
    lengths = 4 * np.arange(1, len(medians) + 1)
    return LengthCurve("", lengths, {"exact_match": values}, (1, 8), 10)


def test_the_reach_is_the_longest_length_before_the_first_failure():
    assert reach_of(curve(1, 1, 1, 1)) == 2
    assert reach_of(curve(1, 0.95, 0.96, 0.9, 1)) == 1.5  # what comes after a failure does not count
    assert reach_of(curve(1, 1, 0.2)) == 1
    assert reach_of(curve(0.9, 1, 1)) is None  # not learned at a trained length
    assert reach_of(curve(1, 0.94, 1)) is None
    assert reach_of(curve(1, 1, 1, spread=0.5)) == 1.5  # the median counts
    dead = curve(1, 1, 1)
    dead.values["exact_match"][1:] = np.nan  # two of three seeds diverged
    assert reach_of(dead) is None


@pytest.mark.parametrize(
    ("medians", "text", "line"),
    [
        ((1, 1, 1, 0.2), "1.5x", "up to 12 tokens, 1.5 times the longest of training"),
        ((1, 1, 1, 1), "2x+", "up to at least 16 tokens, at least 2 times the longest of training"),
    ],
)
def test_a_reach_to_the_end_of_the_curve_is_a_lower_bound(medians, text, line):
    record = {
        "curve": dataclasses.replace(curve(*medians), unit="tokens").to_dict(),
        "steps": 10,
        "rate": 0.1,
        "final_loss": [0.1],
    }
    found = Outcomes((CELL.network,), (CELL.task,), {CELL: record}, {})
    assert found.text(CELL) == text
    assert described(record) == f"{line}, after 10 steps at rate 0.1"


def test_the_text_of_a_cell_tells_the_lowest_accuracy_of_training_and_an_end_that_was_measured():
    def text(found: LengthCurve) -> str:
        record = {"curve": found.to_dict(), "steps": 10, "rate": 0.1, "final_loss": [0.1]}
        return Outcomes((CELL.network,), (CELL.task,), {CELL: record}, {}).text(CELL)

    assert text(curve(0.9, 0.3, 0.1)) == "(30%)"  # at the longest length of training
    assert text(curve(0.2, 1, 0.1)) == "(20%)"
    assert text(dataclasses.replace(curve(1, 1, 1, 0.2), lengths=np.array([4, 8, 15, 16]))) == "1.88x"


def test_each_cell_has_a_record_of_its_own(tmp_path):
    headings = (*TASKS, *tasks.names())
    assert len({Cell(heading, "gru").path(tmp_path) for heading in headings}) == len(set(headings))


@pytest.mark.parametrize(("network", "task"), [("gru", "S5 words"), ("transformer", "recall")])
def test_networks_have_as_many_parameters_as_the_budget_says(network, task):
    model, count = sized(network, task_of(task), 50_000)
    assert abs(count - 50_000) <= 5000
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
    made = Trainer(Experiment(task_of(task), model), 4)
    params = initial_state(made.model, made.task, made.optimizer, keys, keep_best=False, abstract=True).members.params
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_every_cell_of_the_map_has_its_size(network):
    for cell in cells([network]):
        if cell.refusal is None:
            sized(network, task_of(cell.task), Budget().parameters)


def test_a_size_that_cannot_be_had_is_an_error():
    with pytest.raises(ValueError, match=r"transformer can have \d+ parameters for this task, not 100"):
        sized("transformer", task_of("copy"), 100)
    with pytest.raises(ValueError, match="answer_automaton has no field that sets its size"):
        sized("answer_automaton", task_of("S5 words"), 50_000)


def test_lengths_of_the_curve_reach_from_training_to_four_times_as_far():
    assert curve_lengths(task_of("copy")) == (4, 8, 12, 16, 18, 20, 24, 28, 32, 40, 48, 64)
    assert all(length % 2 == 0 for length in curve_lengths(task_of("dyck")))
    for heading in TASKS:
        task = task_of(heading)
        lengths = curve_lengths(task)
        assert list(lengths) == sorted(set(lengths))
        assert task.train_lengths[1] in lengths and lengths[-1] >= 2 * task.train_lengths[1]
    assert curve_lengths(task_of("dnc_copy"))[:4] == (5, 8, 12, 15)  # none that is shorter than in training


def test_a_rate_of_zero_trains_nothing_and_each_lane_has_its_own():
    task = task_of("parity")
    trainer = Trainer(Experiment(task, models.make("lstm", hidden_size=4, embedding_size=2)), batch_size=2)
    keys = jnp.repeat(jax.random.split(jax.random.key(0), 1), 2)
    before = jax.tree.map(np.asarray, trainer.initial(keys).members.params)
    after, steps = trainer.fit(keys, (0.0, 1e-2), seconds=0.01)
    assert steps >= 10
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(new[0], old[0])
        np.testing.assert_array_equal(old[1], old[0])
    assert any((new[1] != old[1]).any() for old, new in zip(*map(jax.tree.leaves, (before, after)), strict=True))


def test_the_clock_starts_after_the_schedule_is_compiled(monkeypatch):
    """Its operations are compiled at their first use."""
    seen = []

    class Watched(Cosine):
        def __call__(self, count, steps):
            seen.append("schedule")
            return super().__call__(count, steps)

    def clock() -> float:
        seen.append("clock")
        return float(len(seen))

    monkeypatch.setattr("lenmem.map.training.Cosine", Watched)
    monkeypatch.setattr("lenmem.map.training.time.process_time", clock)
    task = tasks.make("copy", train_lengths=(1, 2))
    trainer = Trainer(Experiment(task, models.make("lstm", hidden_size=4, embedding_size=2)), batch_size=2)
    trainer.fit(jax.random.split(jax.random.key(0), 1), (1e-2,), seconds=1.0)
    assert seen == ["schedule", "clock", "schedule", "clock"]


def test_the_schedule_follows_the_clock(monkeypatch):
    """Ten steps take a second of four."""
    counts, seconds = [], iter(range(100))

    class Watched(Cosine):
        def __call__(self, count, steps):
            counts.append(count / steps)
            return super().__call__(count, steps)

    monkeypatch.setattr("lenmem.map.training.Cosine", Watched)
    monkeypatch.setattr("lenmem.map.training.time.process_time", lambda: next(seconds))
    task = tasks.make("copy", train_lengths=(1, 2))
    trainer = Trainer(Experiment(task, models.make("lstm", hidden_size=4, embedding_size=2)), batch_size=2)
    _, steps = trainer.fit(jax.random.split(jax.random.key(0), 1), (1e-2,), seconds=4.0)
    assert counts[1:] == [0, 0.25, 0.5, 0.75] and steps == 40


def test_a_cell_is_trained_at_the_rate_with_the_lowest_loss(monkeypatch, tmp_path):
    """Of equal starts. A rate at which the network diverges is not chosen, and no test length counts."""
    asked, splits, losses = [], [], iter([[np.nan, 0.2, 0.3], [0.1, 0.1]])

    def fit(self, keys, rates, seconds):
        asked.append((jax.random.key_data(keys).tolist(), tuple(rates), seconds))
        return {}, 10

    def evaluated(apply, params, metrics, source, key, batches):
        splits.append(source.split)
        return {"loss": np.array(next(losses))}

    monkeypatch.setattr(Trainer, "fit", fit)
    monkeypatch.setattr("lenmem.map.training.evaluate", evaluated)
    monkeypatch.setattr("lenmem.map.training.measure", lambda *_, **__: curve(1, 1))
    budget = dataclasses.replace(TINY, rates=(1e-1, 1e-3, 1e-2))
    record = run_cell(CELL, budget, tmp_path, lambda _: None)
    (tried, rates, short), (starts, chosen, long) = asked
    assert (rates, chosen, record["rate"]) == (budget.rates, (1e-3, 1e-3), 1e-3)
    assert tried == starts[:1] * 3 and starts[0] != starts[1]
    assert (short, long) == pytest.approx((3 * TINY.search_seconds, 2 * TINY.seconds))
    assert splits == ["validation"] * 2


def test_a_record_is_complete_and_read_again(trained):
    record, results = trained
    assert read(CELL, TINY, results) == json.loads(json.dumps(record))
    assert record["rate"] in TINY.rates
    assert len(record["losses"]) == len(TINY.rates) and len(record["final_loss"]) == TINY.seeds
    found = LengthCurve.from_dict(record["curve"])
    assert found.seeds == TINY.seeds and tuple(found.lengths) == curve_lengths(task_of("copy"))
    assert described(record).startswith("not learned in ")  # 0.2 s are too short for anything


def test_cells_of_two_budgets_are_not_mixed(trained):
    _, results = trained
    with pytest.raises(ValueError, match=r"lstm.json was made with another budget \(seeds\); give another directory"):
        read(CELL, dataclasses.replace(TINY, seeds=5), results)


def test_a_record_of_other_settings_does_not_count(trained, monkeypatch):
    _, results = trained
    monkeypatch.setitem(NETWORKS, "lstm", {"embedding_size": 3})
    assert read(CELL, TINY, results) is None


def test_the_page_says_why_a_cell_is_grey_or_empty(trained):
    _, results = trained
    chosen = cells(["lstm", "pointer_network"], ["copy", "parity"])
    found = outcomes(chosen, results)
    save_map(found, results)
    assert (results / "map.png").stat().st_size > 5000
    page = (results / "README.md").read_text()
    assert page == markdown(found)
    accuracy = found.text(CELL)
    assert accuracy.startswith("(") and f"| lstm | {accuracy} |  |" in page  # trained; not trained
    assert "* lstm on copy: not learned in" in page
    assert "* pointer_network on parity: not possible, it answers with tokens of the input" in page
    part = [CELL, Cell("parity", "lstm"), Cell("copy", "pointer_network")]  # of a row also what was not asked for
    assert outcomes(part, results).refusals == found.refusals


# A stand-in for `lenmem`: notes the cell, and writes its record, except for the GRU's.
WORKER = """
import json, sys
from pathlib import Path
arguments = sys.argv[1:]
network, task, results = (arguments[arguments.index(f"--{x}") + 1] for x in ("networks", "tasks", "results"))
with open(Path(results, "started"), "a") as file:
    print(network, task, file=file)
if network == "gru":
    sys.exit("error: cannot")
record = json.loads(Path(results, "record").read_text())
path = Path(results, task, f"{network}.json")
path.parent.mkdir(exist_ok=True)
path.write_text(json.dumps(record))
"""


def test_cells_are_trained_once_and_impossible_ones_never(trained, tmp_path):
    record, _ = trained
    (tmp_path / "record").write_text(json.dumps(record))
    (tmp_path / "worker.py").write_text(WORKER)
    chosen = cells(["lstm", "gru"], ["copy"]) + cells(["pointer_network"], ["parity"])

    def run() -> tuple[list[str], list[str]]:
        said: list[str] = []
        command = (sys.executable, str(tmp_path / "worker.py"))
        failed = run_map(chosen, TINY, tmp_path, workers=1, say=said.append, command=command)
        return [job.name for job in failed], said

    failed, said = run()
    assert failed == ["gru on copy"]
    assert said[0].startswith("0 of 2 cells are there, 1 are not possible; 2 left, about ")
    failed, said = run()
    assert said[0].startswith("1 of 2 cells are there")
    assert (tmp_path / "started").read_text().splitlines() == ["lstm copy", "gru copy", "gru copy"]


def command(cell: Cell, results: Path) -> list[str]:
    """The command that trains a cell in the process it is given to."""
    return list(cell.arguments(TINY, results))


def test_one_process_writes_the_page_of_all_cells_that_are_there(trained, tmp_path, capsys):
    record, _ = trained
    for network in ("lstm", "gru"):
        cell = Cell("copy", network)
        kept = record | {"network": network, "cell": settings_of(cell)}
        cell.path(tmp_path).parent.mkdir(exist_ok=True)
        cell.path(tmp_path).write_text(json.dumps(kept))
    main(command(CELL, tmp_path))
    page = (tmp_path / "README.md").read_text()
    assert "| lstm | (" in page and "| gru | (" in page
    assert (tmp_path / "map.png").exists()
    assert "README.md, map.png" in capsys.readouterr().out


def test_a_cell_that_fails_in_one_process_is_named_and_the_others_go_on(monkeypatch, trained, tmp_path, capsys):
    record, _ = trained

    def run(cell, budget, results, say):
        if cell.network == "gru":
            raise ValueError("cannot")
        cell.path(results).parent.mkdir(exist_ok=True)
        cell.path(results).write_text(json.dumps(record))

    monkeypatch.setattr("lenmem.map.training.run_cell", run)
    words = command(CELL, tmp_path)
    words.insert(words.index("lstm"), "gru")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert "FAILED gru on copy: cannot" in printed.out and "1 of 2 cells failed: gru on copy" in printed.err
    assert "| lstm | (" in (tmp_path / "README.md").read_text()


def test_a_worker_leaves_the_page_to_its_parent(monkeypatch, tmp_path):
    told = []
    monkeypatch.setattr(maps, "run_cell", lambda *arguments: told.append(arguments))
    monkeypatch.setenv(workers.WORKER, "1")
    main(command(CELL, tmp_path))
    assert [arguments[:3] for arguments in told] == [(CELL, TINY, tmp_path)]
    assert not list(tmp_path.iterdir())


def test_a_page_of_someone_else_is_not_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr("lenmem.map.training.run_cell", lambda *_: pytest.fail("trained before"))
    (tmp_path / "README.md").write_text("my project")
    with pytest.raises(ValueError, match=r"README.md would be replaced, but lenmem did not write it"):
        run_map([CELL], TINY, tmp_path, workers=0)
    with pytest.raises(ValueError, match="would be replaced"):
        save_map(outcomes([CELL], tmp_path), tmp_path)
    assert (tmp_path / "README.md").read_text() == "my project"


def test_a_damaged_record_is_named(tmp_path):
    path = CELL.path(tmp_path)
    path.parent.mkdir()
    path.write_text('{"budget": ')
    with pytest.raises(ValueError, match=r"copy/lstm\.json is not a JSON file"):
        read(CELL, TINY, tmp_path)


def test_a_worker_gets_the_same_cell_and_budget(tmp_path):
    arguments = Cell("S5 words", "gru").arguments(TINY, tmp_path)
    options = parse(Map, "map", list(arguments[1:]))
    assert (options.networks, options.tasks, options.budget) == (("gru",), ("S5 words",), TINY)
    assert options.workers == 0 and options.results == tmp_path


def test_wrong_names_and_budgets_are_errors():
    with pytest.raises(ValueError, match=r"the map has no network 'lstn'. Did you mean 'lstm'"):
        cells(["lstn"])
    with pytest.raises(ValueError, match=r"the map has no 'S6 words'. Did you mean 'S5 words'"):
        cells([], ["S6 words"])
    with pytest.raises(ValueError, match="rates must be one or more positive learning rates"):
        Budget(rates=())
    with pytest.raises(ValueError, match="seconds"):
        Budget(seconds=0)
    assert len(cells()) == len(NETWORKS) * len(TASKS)
    assert cells(["lstm"], ["fibonacci"])[0].refusal is None  # any model on any task


def test_a_picture_needs_a_number_for_each_cell():
    with pytest.raises(ValueError, match=r"reach must be \[1, 2\], got shape \(1, 1\)"):
        plot_reach(["a"], ["b", "c"], np.ones((1, 1)))
