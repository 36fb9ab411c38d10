"""Lie-access rows: the authors' published configurations are in the grid that the paper names."""

from __future__ import annotations

from collections import Counter

from lenmem.reproduce import rows_of

COMBINATIONS = {"lantm": 12, "lantm-s": 12, "slantm": 24, "slantm-s": 24, "ram": 24, "ram_tape": 48, "lstm": 32}
TASKS = ("bigram_flip", "copy", "double", "interleaved_add", "odd_first", "priority_sort", "repeat_copy", "reverse")


def test_each_grid_is_that_of_table_a1_less_the_published_winner():
    names = list(rows_of("lantm/grid"))
    cells = Counter((name.split("-grid-")[0], name[-1]) for name in names)
    assert cells == {
        (f"{task}-{model}", regime): size - 1
        for task in TASKS
        for model, size in COMBINATIONS.items()
        for regime in "LS"
    }


def test_a_row_of_the_grid_is_what_its_name_says():
    row = rows_of("lantm/grid")["copy-ram_tape-grid-uniform-learning_rate0.02-delay6000-key_size2-sharpening-S"]
    training, model = row.experiment.training, row.experiment.model
    assert (training.optimizer.learning_rate, training.optimizer.schedule.delay) == (0.02, 6000)
    assert (model.initialization, model.key_size, model.sharpening, model.forget_bias) == ("uniform", 2, True, 2.0)
    assert row.experiment.task.regime == "S" and row.where == {"task": "copy", "model": "RAM/Tape", "regime": "S"}


def test_the_published_rows_have_the_gates_and_biases_of_the_code():
    rows = rows_of("lantm/reverse")
    models = {name: row.experiment.model for name, row in rows.items() if name.endswith("published-L")}
    assert len(models) == len(COMBINATIONS)
    assert models["reverse-lantm-published-L"].initialization == "uniform"
    for name, model in models.items():
        if "lstm" not in name:
            assert model.forget_bias == (2.0 if model.initialization == "uniform" else None)
        assert getattr(model, "read_gate_bias", 0.0) == 0.0
