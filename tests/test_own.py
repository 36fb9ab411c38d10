"""A user's own classes, data and pairs of task and model; runs that continue, and seeds that diverge."""

from __future__ import annotations

import json
import os
import shlex
import sys

import numpy as np
import pytest

import lenmem
from lenmem import cli, configs, runs, share, tasks
from lenmem.evaluation.lengths import LengthCurve
from lenmem.subject import DEFAULT_TRAINING, subject
from tests.test_cli import fails, interrupted_at_once, run

OWN = """
import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from lenmem import Evaluation, Experiment, Optimizer, Training
from lenmem.tasks import Copy


@dataclasses.dataclass(frozen=True)
class Parity(Copy):
    flavour: int = 1


class Poisoned(nn.Module):  # Its answer turns NaN once its bias has moved past a limit, at another step in each seed.
    output_size: int = 5

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        bias = self.param("bias", nn.initializers.normal(0.05), (self.output_size,))
        outputs = jnp.broadcast_to(bias, (*target_mask.shape, self.output_size))
        self.sow("traces", "logits", outputs)
        return jnp.where(jnp.max(jnp.abs(bias)) > 0.2, jnp.nan, outputs)


experiment = Experiment(
    Parity(vocabulary=4, train_lengths=(1, 3)),
    Poisoned(),
    Training(
        steps=6, seeds=8, batch_size=4, log_every=2, checkpoint_every=2, keep_steps=(2,),
        optimizer=Optimizer("sgd", learning_rate=0.3),
    ),
    Evaluation(lengths=(2, 5), samples=4),
)
"""
CELL = """
import flax.linen as nn
import jax.numpy as jnp
from lenmem import Evaluation, Experiment, Training
from lenmem.nn import Transducer
from lenmem.tasks import Copy


class Mine(nn.Module):
    size: int = 2

    def start(self, batch_shape, steps=0):
        return jnp.zeros((*batch_shape, self.size))

    @nn.compact
    def __call__(self, carry, step):
        carry = nn.tanh(nn.Dense(self.size)(step.inputs) + carry)
        return carry, carry


experiment = Experiment(
    Copy(vocabulary=4, train_lengths=(1, 3)),
    Transducer(Mine()),
    Training(steps=2, seeds=1, batch_size=4, log_every=2),
    Evaluation(lengths=(2,), samples=4),
)
models = {"mine": experiment.model}
"""
FILE = ("--modules", "mytask.py")
QUICK = ("--training.steps", "2", "--training.seeds", "1", "--training.batch-size", "4", "--training.log-every", "1")
TINY = (
    "--model.hidden-size",
    "4",
    "--model.embedding-size",
    "3",
    "--evaluation.lengths",
    "2",
    "--evaluation.samples",
    "4",
)
SHORT = ("--task.train-lengths", "1", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with a run of the user's own task and network, in which some seeds diverged."""
    path = tmp_path_factory.mktemp("own")
    (path / "mytask.py").write_text(OWN)
    before = os.getcwd()
    os.chdir(path)
    cli.main(["train", "mytask.py"])
    yield path
    os.chdir(before)


@pytest.fixture(scope="module")
def known(folder):
    """The user's classes. They are other ones, for which all is compiled again, each time their file is read."""
    return configs.own_modules(["mytask.py"])


@pytest.fixture(scope="module")
def whole(known):
    """The same run, loaded in Python."""
    return lenmem.load("runs/mytask", modules=known)


def curve_in(path) -> LengthCurve:
    """The curve that was written to a run."""
    return LengthCurve.from_dict(json.loads((path / "curve.json").read_text()))


def same_values(one, other):
    """Compares two curves, with NaN for the same diverged seeds."""
    assert one.values.keys() == other.values.keys()
    for name, values in one.values.items():
        np.testing.assert_allclose(values, other.values[name], rtol=1e-6)


# A dead seed stays dead -----------------------------------------------------------------------------------------------


def test_a_dead_seed_is_dead_wherever_the_run_is_read(folder, known, whole, capsys):
    """A run has one curve: trained, evaluated, drawn, exported or imported."""
    last = json.loads((folder / "runs/mytask/metrics.jsonl").read_text().splitlines()[-1])
    assert whole.alive.tolist() == last["alive"] and 0 < whole.alive.sum() < 8
    trained = curve_in(folder / "runs/mytask")
    np.testing.assert_array_equal(np.isnan(trained.values["exact_match"]).any(axis=1), ~whole.alive)
    same_values(lenmem.measure(whole), trained)
    assert np.all(np.isfinite(whole.params["bias"]))

    died = f"{np.sum(~whole.alive)} seeds of Poisoned diverged"
    assert died in " ".join(run(capsys, "evaluate", "mytask", *FILE, "--save").split())
    same_values(curve_in(folder / "runs/mytask"), trained)
    run(capsys, "plot", "mytask", *FILE)
    run(capsys, "export", "mytask", *FILE, "--output", "dead.safetensors", "--with-optimizer")
    run(capsys, "import", "dead.safetensors", *FILE, "--directory", "imported")
    for name in ("dead.safetensors", "imported"):
        other = lenmem.load(name, modules=known)
        assert other.alive.tolist() == whole.alive.tolist()
        same_values(lenmem.measure(other), trained)
        assert died in " ".join(run(capsys, "evaluate", name, *FILE).split())


def test_a_dead_seed_does_not_answer(folder, whole, capsys):
    dead, living = int(np.argmin(whole.alive)), np.flatnonzero(whole.alive).tolist()
    typed = ("predict", "mytask", *FILE, "--input", "1 2")
    message = (
        f"seed {dead} of runs/mytask diverged in training: non-finite loss, gradient or update; alive are {living[0]}, "
    )
    assert message in fails(capsys, *typed, "--seed", str(dead))
    assert message in fails(capsys, "plot", "mytask", *FILE, "--seed", str(dead))
    assert run(capsys, *typed) == run(capsys, *typed, "--seed", str(living[0]))
    everyone = whole.step, whole.directory, whole.manifest, np.zeros(8, bool)
    with pytest.raises(ValueError, match="every seed of runs/mytask diverged"):
        lenmem.Run(whole.experiment, whole.params, *everyone).seed_params()


def test_who_is_alive_is_known_of_what_was_saved_before(folder, known, whole):
    """For a snapshot from the metrics; a file without this information has only alive seeds, or those of its
    metrics."""
    first = json.loads((folder / "runs/mytask/metrics.jsonl").read_text().splitlines()[0])
    assert lenmem.load("runs/mytask", step=2, modules=known).alive.tolist() == first["alive"]
    plain = {"experiment": whole.manifest["experiment"], "step": 6}
    share.export_params("old.safetensors", whole.params, plain)
    assert lenmem.load("old.safetensors", modules=known).alive.all()
    history = [{"step": 2, "alive": [True] * 8}, {"step": 6, "alive": whole.alive.tolist()}]
    share.export_params("old.safetensors", whole.params, plain | {"metrics": history})
    assert lenmem.load("old.safetensors", modules=known).alive.tolist() == whole.alive.tolist()
    share.export_params("old.safetensors", whole.params, plain | {"alive": [True]})
    with pytest.raises(ValueError, match="says which of 1 seeds diverged; it has 8"):
        lenmem.load("old.safetensors", modules=known)
    for name, value in {"run": None, "alive": 3, "step": "a", "metrics": 5}.items():
        share.export_params("old.safetensors", whole.params, plain | {name: value})
        with pytest.raises(ValueError, match=f"old.safetensors is damaged: its {name} is "):
            lenmem.load("old.safetensors", modules=known)


# Own task -------------------------------------------------------------------------------------------------------------


def test_a_class_of_ones_own_is_passed_to_every_verb(folder, capsys):
    run(capsys, "export", "mytask", *FILE, "--output", "own.safetensors", "--with-optimizer")
    for words in (
        ("evaluate", "mytask"),
        ("predict", "mytask", "--input", "1"),
        ("plot", "mytask"),
        ("export", "mytask"),
        ("import", "own.safetensors"),
        ("predict", "own.safetensors", "--input", "1"),
        ("train", "--resume", "runs/mytask"),
    ):
        said = fails(capsys, *words)
        assert "'mytask.Parity' is not part of lenmem" in said or "'mytask.Poisoned' is not part of lenmem" in said
        assert "--modules mytask.py on the command line, modules=[P" in said
    assert "--modules takes files *.py or names" in fails(capsys, "evaluate", "mytask", "--modules", "no_such_module")
    (folder / "installed.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        assert " right" in run(capsys, "predict", "mytask", "--modules", "installed", "--length", "2")
    printed = run(capsys, "import", "own.safetensors", *FILE, "--directory", "again")
    assert "lenmem train --resume again --modules mytask.py" in printed


def test_a_configuration_with_classes_of_its_own_has_options_and_help(folder, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "mytask.py", "--help"])
    assert ended.value.code == 0
    assert "--task.flavour" in capsys.readouterr().out
    assert "--task.flavour" in fails(capsys, "train", "mytask.py", "--task.flavor", "3")


def test_a_configuration_may_postpone_its_annotations(folder):
    (folder / "postponed.py").write_text(f"from __future__ import annotations\n{OWN}")
    assert configs.load_config("postponed.py").task.flavour == 1


def test_a_configuration_that_failed_is_not_imported_in_part(folder):
    (folder / "broken.py").write_text("value = 1\nraise TypeError('broken')\n")
    (folder / "neighbour.py").write_text("from .broken import value\n")
    for name in ("broken.py", "neighbour.py"):
        with pytest.raises(ValueError, match="TypeError: broken"):
            configs.module_of(name)


# Any task with any model ----------------------------------------------------------------------------------------------


def test_any_task_with_any_model(folder, capsys):
    words = ("--model", "gru", *QUICK, *SHORT, *TINY, "--task.vocabulary", "4")
    run(capsys, "train", "copy", *words)
    assert "no traces to draw; it has decoding, token, valid" in fails(capsys, "plot", "copy-gru", "--trace")
    trained = lenmem.load("runs/copy-gru").experiment
    assert trained.task == tasks.make("copy", vocabulary=4, train_lengths=(1, 3))
    assert (type(trained.model).__name__, trained.training.steps) == ("GRU", 2)
    assert subject(["copy", *words], "usage") == subject(["--task", "copy", *words], "usage")


def test_a_pair_has_a_training_that_is_stated(monkeypatch, folder, capsys):
    about = subject(["reverse", "--model", "panm", "--task.vocabulary", "5"], "usage")
    assert (about.name, about.options) == ("reverse-panm", ["--task.vocabulary", "5"])
    assert about.experiment["training"] == DEFAULT_TRAINING
    monkeypatch.setattr(runs, "train_and_measure", lambda *_, **__: 1 / 0)
    with pytest.raises(SystemExit):
        cli.main(["train", "copy", "--model", "gru"])
    said, error = (" ".join(text.split()) for text in capsys.readouterr())
    assert "error: ZeroDivisionError: division by zero" in error
    assert "training: 1000 steps of 32 examples, 3 seeds, adam at 0.003, gradients clipped to a norm of 1;" in said


def test_a_configuration_with_another_model():
    own = subject(["quickstart", "--model", "lantm"], "usage")
    other = subject(["quickstart", "--model", "lstm"], "usage")
    plain = subject(["quickstart"], "usage")
    assert own.experiment == plain.experiment
    assert other.name == "quickstart-lstm" and other.experiment["task"] == plain.experiment["task"]
    assert type(other.experiment["model"]).__name__ == "LSTM"
    assert other.experiment["training"].optimizer == configs.optimizers_of("quickstart")["lstm"]


def test_help_is_that_of_the_pair(folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "repeat_copy", "--model", "ndr", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for option in (
        "--task.regime",
        "--model.heads",
        "--training.steps",
        "--task ",
        "--model ",
        "--resume",
        "--modules",
    ):
        assert option in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("copy",), "copy is a task; add the model that learns it, as in --model lstm"),
        (("--task", "copy"), "copy is a task; add the model"),
        (("copy", "--modle", "lstm"), "there is no option --modle. Did you mean '--model'?"),
        (("--tasks", "copy", "--model", "lstm"), "there is no option --tasks. Did you mean '--task'?"),
        (("--model", "lstm"), "add the task that lstm learns, as in --task copy"),
        (("copy", "--task", "reverse", "--model", "gru"), "copy and --task reverse are two tasks"),
        (("quickstart", "--task", "copy", "--model", "gru"), "the configuration quickstart has a task"),
        (("--task", "cpy", "--model", "gru"), "'cpy' is not a task. Did you mean 'copy'?"),
        (("arithmetic", "--model", "pointer_network"), "PointerNetwork cannot take Arithmetic: it answers with tokens"),
        (("--task",), "--task: expected one argument"),
        ((), "usage: lenmem train CONFIG | TASK --model MODEL | --resume RUN"),
    ],
)
def test_what_cannot_be_meant_is_one_message(folder, capsys, words, message):
    assert message in fails(capsys, "train", *words)


# Resuming -------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_run_knows_how_it_goes_on(folder, capsys, monkeypatch):
    monkeypatch.setattr(runs, "train_and_measure", interrupted_at_once(runs.train_and_measure))
    words = ("train", "copy", "--model", "gru", *QUICK, *SHORT, *TINY, "--task.vocabulary", "4", "--directory", "cut")
    with pytest.raises(SystemExit):
        cli.main(list(words))
    monkeypatch.undo()
    printed = " ".join(capsys.readouterr().out.split())
    command = shlex.split("train --resume cut")
    assert "lenmem train --resume cut" in printed

    assert "cut holds a run; choose another --directory, or continue it with --resume cut" in fails(capsys, *words)

    said = fails(capsys, *command, "--training.steps", "9", "--model.layers", "2")
    assert (
        "nothing was changed: model.layers: the run has 1, asked for 2; training.steps: the run has 2, asked for"
        in said
    )
    assert "task.vocabulary: the run has 4, asked for 128" in fails(capsys, *words[:-8], "--resume", "cut")
    assert "are two runs; give one" in fails(capsys, *command, "--directory", "elsewhere")
    cli.main([*command, "--training.devices", "1"])  # How it is computed may differ.
    assert lenmem.load("cut").step == 2
    assert (folder / "cut/curve.json").exists()
    cli.main(["train", "--resume", "--directory", "cut"])


def test_a_run_whose_optimiser_is_not_stored_goes_on_with_all_words(folder, capsys, monkeypatch):
    rule = CELL.replace("import flax", "import optax\nimport flax").replace(
        "log_every", "optimizer=optax.sgd(0.1), log_every"
    )
    (folder / "rule.py").write_text(rule)
    monkeypatch.setattr(runs, "train_and_measure", interrupted_at_once(runs.train_and_measure))
    words = ("rule.py", "--model", "gru", "--training.steps", "4", "--model.hidden-size", "3", "--directory", "ruled")
    with pytest.raises(SystemExit):
        cli.main(["train", *words])
    monkeypatch.undo()
    command = "train rule.py --model gru --resume --directory ruled --training.steps 4 --model.hidden-size 3"
    assert f"lenmem {command}" in " ".join(capsys.readouterr().out.split())
    cli.main(command.split())
    assert lenmem.load("ruled", modules=configs.own_modules(["rule.py"])).step == 4


def test_what_is_no_run_is_not_resumed(folder, capsys):
    for words in (
        ("--resume", "runs/no"),
        ("--resume", "--directory", "runs/no"),
        ("mytask.py", "--resume", "--directory", "runs/no"),
        ("mytask.py", "--resume", "runs/no"),
    ):
        assert "runs/no holds no run that could be resumed" in fails(capsys, "train", *words)
    assert not (folder / "runs/no").exists()
    (folder / "early").mkdir()
    (folder / "early/metrics.jsonl").write_text('{"step": 2, "loss": [1]}\n')
    said = fails(capsys, "train", "--resume", "early")
    assert "early has no checkpoint: it stopped before the first one" in said
    assert "lenmem train CONFIG --resume --directory early" in said


def test_results_of_other_code_are_not_taken_for_those_of_a_class(folder, capsys):
    """A changed class is trained anew, beside the older run; a comment, or another setting, changes nothing."""
    (folder / "cell.py").write_text(CELL)
    words = ("compare", "cell.py", "--models", "mine")
    assert "training mine on cell" in run(capsys, *words)
    (folder / "cell.py").write_text(f"# a comment\n{CELL}\nmodels['other'] = Transducer(Mine(size=3))\n")
    assert "training mine" not in run(capsys, *words)
    (folder / "cell.py").write_text(CELL.replace("nn.tanh(", "nn.relu("))
    assert "training mine on cell" in run(capsys, *words)
    assert sorted(path.name for path in (folder / "runs/cell").glob("mine*")) == ["mine", "mine-2"]
    assert "training mine" not in run(capsys, *words)

    with pytest.warns(UserWarning, match="runs/cell/mine is resumed with other code of your classes"):
        cli.main(["train", "cell.py", "--resume", "--directory", "runs/cell/mine"])
    over = ("--over", "training.optimizer.learning_rate", "0.1")
    run(capsys, "sweep", "cell.py", *over)
    (folder / "cell.py").write_text(CELL)
    assert "holds a sweep with other code of your classes" in fails(capsys, "sweep", "cell.py", *over)


# Own data -------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_data_of_ones_own_from_the_command_line(folder, capsys):
    rows = [(" ".join("abcde"[i % 5] for i in range(n, n + 1 + n % 6)), f"x{n % 3}") for n in range(60)]
    (folder / "own.jsonl").write_text("".join(json.dumps({"in": a, "out": b}) + "\n" for a, b in rows))
    (folder / "own.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    run(capsys, "train", "pairs", "--task.path", "own.jsonl", "--model", "gru", *QUICK, *TINY)
    assert set(run(capsys, "predict", "pairs-gru", "--input", "a b").split()) <= {"x0", "x1", "x2"}
    assert "out of a b c d e; got 'ab'" in fails(capsys, "predict", "pairs-gru", "--input", "ab")
    run(capsys, "compare", "--tasks", "pairs", "--models", "gru", "--task.path", "own.tsv", *QUICK)
    of_table = lenmem.load("runs/compare/pairs-gru").experiment.task
    of_lines = lenmem.load("runs/pairs-gru").experiment.task
    assert of_table.path == "own.tsv" and of_table.input_names == of_lines.input_names
    (folder / "other.tsv").write_text("".join(f"{a.replace('c', 'z')}\t{b}\n" for a, b in rows))
    said = fails(capsys, "evaluate", "pairs-gru", "--task.path", "other.tsv")
    assert "the data have other tokens than in training: input id 2 was c, is d" in said
    both = ("compare", "--tasks", "pairs", "copy", "--models", "gru", "--task.path", "own.tsv")
    assert "there is no option --task.path" in fails(capsys, *both)


def test_a_run_of_rows_in_memory_is_whole(folder, capsys):
    """It can be evaluated and answers without passing the rows again, also from a file."""
    rows = [(" ".join("abcde"[i % 5] for i in range(n, n + 1 + n % 6)), f"x{n % 3}") for n in range(60)]
    model = lenmem.models.make("gru", hidden_size=4, embedding_size=3)
    setup = lenmem.Experiment(
        tasks.make("pairs", rows=({"q": a, "a": b} for a, b in rows)),
        model,
        lenmem.Training(steps=2, batch_size=4, log_every=1),
        lenmem.Evaluation(samples=4),
    )
    lenmem.train(setup, directory="runs/rows")
    loaded = lenmem.load("runs/rows")
    assert loaded.experiment == setup
    same_values(lenmem.measure(loaded), lenmem.measure(setup, loaded.params))
    run(capsys, "export", "rows", "--output", "rows.safetensors")
    answers = [run(capsys, "predict", name, "--input", "a b c") for name in ("rows", "rows.safetensors")]
    assert answers[0] == answers[1]


# Errors of one's own --------------------------------------------------------------------------------------------------


def test_an_error_in_ones_own_class_names_its_line(folder, capsys, monkeypatch):
    wrong = CELL.replace(
        "carry = nn.tanh(", 'if self.size == 2: raise ValueError("size is even")\n        carry = nn.tanh('
    )
    (folder / "wrong.py").write_text(wrong)
    line = wrong.splitlines().index('        if self.size == 2: raise ValueError("size is even")') + 1
    said = fails(capsys, "train", "wrong.py")
    assert said.endswith(f"error: size is even (in {folder.resolve()}/wrong.py, line {line})")
    assert "(in" not in fails(capsys, "train", "nowhere.py")  # not in a user's code
    (folder / "mistyped.py").write_text(CELL.replace("carry = nn.tanh(", "carry = nn.tanh(1, 2, 3, "))
    said = fails(capsys, "train", "mistyped.py")
    assert "error: TypeError: tanh() takes 1 positional argument but" in said
    assert f"mistyped.py, line {line})" in said  # where the other file has its `if`
    monkeypatch.setenv("LENMEM_TRACEBACK", "1")
    with pytest.raises(ValueError, match="size is even"):
        cli.main(["train", "wrong.py"])


def test_a_configuration_imports_its_neighbours(folder, tmp_path):
    (tmp_path / "sizes_of_mine.py").write_text("SIZE = 3\n")
    (tmp_path / "importing.py").write_text("from sizes_of_mine import SIZE\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.path", [*sys.path])
        assert configs.module_of(tmp_path / "importing.py").SIZE == 3


def test_classes_of_a_neighbour_are_those_of_the_configuration(folder, capsys):
    """The file that is printed to continue a run is enough, and so is the name of the class's module."""
    cell, experiment = CELL.split("experiment = ")
    (folder / "mycell.py").write_text(cell)
    (folder / "beside.py").write_text(
        f"{cell.split('class Mine')[0]}import mycell\n\nexperiment = {experiment}".replace("Mine()", "mycell.Mine()")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.path", [*sys.path])
        run(capsys, "train", "beside.py")
        for given in ("beside.py", "mycell.py", "mycell"):
            assert run(capsys, "predict", "beside", "--input", "1 2", "--modules", given)


def test_a_result_answers_and_is_exported_as_a_run(folder, tmp_path):
    """Also without a directory."""
    task = tasks.make("copy", vocabulary=4, train_lengths=(1, 3))
    training = lenmem.Training(steps=2, seeds=1, batch_size=4, log_every=2)
    experiment = lenmem.Experiment(task, lenmem.models.make("gru", hidden_size=3, embedding_size=3), training)
    result = lenmem.train(experiment)
    saved = lenmem.train(experiment, directory=tmp_path / "run")
    run_, loaded = lenmem.Run.of(saved), lenmem.load(tmp_path / "run")
    assert lenmem.Run.of(run_) is run_ and run_.manifest == loaded.manifest
    lenmem.export_run(result, tmp_path / "result.safetensors")
    answers = [
        runs.predict(one, "1 2") for one in (result, saved, loaded, lenmem.load(tmp_path / "result.safetensors"))
    ]
    assert all(answer == answers[0] for answer in answers)
    assert runs.answer_example(result, 2) == runs.answer_example(loaded, 2)
    with pytest.raises(ValueError, match="runs/result is not a run"):
        lenmem.export_run(result, tmp_path / "whole.safetensors", with_optimizer=True)
