"""Trainings that are begun again where the validation says that a seed is stuck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from lenmem import restarts
from lenmem.evaluation.lengths import Evaluation
from lenmem.experiment import Experiment
from lenmem.files import as_json
from lenmem.models import make
from lenmem.tasks.chomsky import ParityCheck
from lenmem.training import DivergedError, Training
from lenmem.training.run_directory import write_metrics

TINY = Experiment(
    ParityCheck(train_lengths=(1, 4), test_lengths=(5, 8)),
    make("elman", hidden_size=4),
    Training(
        steps=1,
        batch_size=16,
        seeds=3,
        log_every=1,
        checkpoint_every=0,
        selection="validation",
        validation_split="test",
        validate_every=1,
        validation_batches=1,
    ),
    Evaluation(lengths=(8,), samples=4, smallest_capacity=16),
)


@pytest.fixture
def played(monkeypatch) -> Any:
    """Replaces the trainings by a list of rounds, [(scores, losses), ..]; parameters are round + lane / 10."""
    keys: list[Any] = []

    def play(rounds: list[tuple[list[float], list[float]]], alive: tuple[bool, ...] = (True, True, True)) -> Any:
        def trained(experiment: Experiment, directory: Path, report: Any = None, key: Any = None) -> Any:
            scores, losses = rounds[len(keys)]
            keys.append(key)
            directory.mkdir(parents=True, exist_ok=True)
            entries = [{"step": 1, "test/exact_match": [0.0, 0.0, 0.0]}, {"step": 2, "test/exact_match": scores}]
            write_metrics(directory, [entry | {"loss": losses, "alive": list(alive)} for entry in entries])
            found = {"alive": list(alive), "steps": 2, "wall_seconds": 1.5}
            return {"w": len(keys) + np.arange(3) / 10}, found

        monkeypatch.setattr(restarts, "trained", trained)
        return keys

    return play


def run(folder: Path, rounds: int = 4, seconds: float = 1e9) -> tuple[list[float], dict[str, Any]]:
    params, facts = restarts.trained_until_exact(TINY, folder / "run", rounds=rounds, seconds=seconds)
    return np.round(np.asarray(params["w"], np.float64), 4).tolist(), facts


def test_what_is_exact_is_not_begun_again(played, tmp_path):
    keys = played([([1.0, 1.0, 1.0], [0.1, 0.1, 0.1])])
    params, facts = run(tmp_path)
    assert (params, facts["tries"], facts["validation"]) == ([1.0, 1.1, 1.2], [1, 1, 1], [1.0, 1.0, 1.0])
    assert keys == [None]


def test_later_rounds_go_to_the_seeds_that_are_stuck(played, tmp_path):
    """The second round has three networks for seeds 0 and 2; the third has three for seed 2."""
    losses = [0.5, 0.5, 0.5]
    keys = played([([0.0, 1.0, 0.5], losses), ([0.2, 0.4, 1.0], losses), ([0.1, 0.9, 1.0], losses)])
    params, facts = run(tmp_path)
    assert (params, facts["tries"]) == ([2.2, 1.1, 3.2], [3, 1, 5])
    assert facts["validation"] == [1.0, 1.0, 1.0] and facts["wall_seconds"] == 4.5
    assert len({str(jax.random.key_data(key)) for key in keys[1:]}) == 2
    assert sorted(path.name for path in (tmp_path / "run").glob("round-*")) == ["round-2", "round-3"]


def test_of_equals_the_one_with_the_lower_loss_is_kept(played, tmp_path):
    played([([0.5, 1.0, 1.0], [0.5, 0.5, 0.5]), ([0.5, 0.5, 0.5], [0.6, 0.3, 0.4])])
    params, facts = run(tmp_path, rounds=2)
    assert (params, facts["tries"]) == ([2.1, 1.1, 1.2], [4, 1, 1])


def test_it_ends_with_the_rounds_or_the_time(played, tmp_path):
    stuck = [0.0, 0.0, 0.0], [0.5, 0.5, 0.5]
    played([stuck, stuck])
    assert run(tmp_path / "rounds", rounds=2)[1]["tries"] == [2, 2, 2]
    played([stuck, stuck, stuck])
    assert run(tmp_path / "time", seconds=0.0)[1]["tries"] == [1, 1, 1]


def test_the_time_is_for_each_seed_and_is_that_of_all_rounds(played, tmp_path, monkeypatch):
    """Rounds of 10 seconds each, for three seeds of 8 seconds each."""
    played([([0.0, 0.0, 0.0], [0.5, 0.5, 0.5])] * 4)
    monkeypatch.setattr(restarts, "_seconds_in", lambda _: 10.0)
    assert run(tmp_path, rounds=4, seconds=8)[1]["tries"] == [3, 3, 3]


def test_a_network_is_ranked_by_its_best_validation_and_its_last_loss(tmp_path):
    entries = [([1.0, 0.2, 0.0], [0.5, 0.1, 0.1]), ([0.5, 0.3, 0.0], [0.3, 0.2, 0.1])]
    write_metrics(tmp_path, [{"step": 1, "test/exact_match": exact, "loss": loss} for exact, loss in entries])
    ranks = restarts._ranks(TINY, tmp_path, {"alive": [True, True, False]})
    np.testing.assert_array_equal(ranks, [[1.0, -0.3], [0.3, -0.2], [-np.inf, -np.inf]])


def test_a_round_that_is_there_counts_whatever_the_time(played, tmp_path):
    stuck = [0.0, 0.0, 0.0], [0.5, 0.5, 0.5]
    exact = [1.0, 1.0, 1.0], [0.5, 0.5, 0.5]
    played([stuck, exact, stuck, exact, stuck, stuck])
    first = run(tmp_path, rounds=3)
    assert first[1]["tries"] == [2, 2, 2]
    assert run(tmp_path, rounds=3, seconds=0.0)[1] == first[1]
    assert run(tmp_path, rounds=3, seconds=0.0)[1]["tries"] == [2, 2, 2], "no third round is begun"


def test_a_diverged_network_is_below_all(played, tmp_path):
    played([([0.9, 1.0, 1.0], [0.5, 0.5, 0.5]), ([0.1, 0.1, 0.1], [0.5, 0.5, 0.5])], alive=(False, True, True))
    params, facts = run(tmp_path, rounds=2)
    assert (params, facts["alive"]) == ([2.1, 1.1, 1.2], [True, True, True])


def test_a_seed_that_stays_dead_has_no_validation(played, tmp_path):
    played([([0.9, 1.0, 1.0], [0.5, 0.5, 0.5])], alive=(False, True, True))
    _, facts = run(tmp_path, rounds=1)
    assert facts["validation"] == [None, 1.0, 1.0]
    as_json(facts)


def test_a_later_round_without_a_living_network_loses_nothing(played, tmp_path, monkeypatch):
    played([([0.5, 1.0, 1.0], [0.5, 0.5, 0.5])])
    first = restarts.trained

    def diverges(experiment, directory, report=None, key=None):
        if key is not None:
            raise DivergedError("every seed")
        return first(experiment, directory, report, key)

    monkeypatch.setattr(restarts, "trained", diverges)
    params, facts = run(tmp_path, rounds=3)
    assert (params, facts["tries"]) == ([1.0, 1.1, 1.2], [7, 1, 1])


def test_processor_time_is_counted_over_sessions(tmp_path, monkeypatch):
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(restarts.time, "process_time", lambda: next(now))
    for step, expected in ((2, 10), (4, 20), (4, 20), (6, 30)):  # the third only reads what is there
        with restarts._timed(tmp_path):
            write_metrics(tmp_path, [{"step": step}])
        assert restarts._seconds_in(tmp_path) == expected

    def interrupted() -> None:
        write_metrics(tmp_path, [{"step": 8}])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), restarts._timed(tmp_path):
        interrupted()
    assert restarts._seconds_in(tmp_path) == 40


@pytest.mark.thorough
def test_rounds_that_are_there_are_not_trained_again(tmp_path):
    """With the real training: an Elman network of 4 units does not learn parity in one step."""
    first = run_real(tmp_path)
    again = run_real(tmp_path)
    assert first[1]["tries"] == again[1]["tries"] == [2, 2, 2]
    jax.tree.map(np.testing.assert_array_equal, first[0], again[0])


def run_real(folder: Path) -> Any:
    return restarts.trained_until_exact(TINY, folder / "run", rounds=2, seconds=1e9)
