"""The command line, called like a user would: its output, its files, and its errors."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest

import lenmem
from lenmem import cli, configs, models, runs, share, tasks
from lenmem import map as maps
from lenmem.cli.programs import keep_programs
from lenmem.serialize import from_plain
from lenmem.training import Optimizer
from tests.training.tiny import experiment

CONFIG = """
from lenmem import Evaluation, Experiment, Optimizer, Training
from lenmem.models.lantm import LANTM
from lenmem.tasks.lantm import Copy

experiment = Experiment(
    Copy(vocabulary=4, train_lengths=(1, 3)),
    LANTM(hidden_size=6, memory_width=4, embedding_size=3),
    Training(steps=4, seeds=2, batch_size=4, log_every=2, checkpoint_every=2, keep_steps=(2,)),
    Evaluation(lengths=(2, 5), samples=4),
)
optimizers = {"gru": Optimizer("rmsprop", learning_rate=0.02)}
"""

PLAIN = CONFIG.replace("models.lantm import LANTM", "models import GRU").replace(
    "LANTM(hidden_size=6, memory_width=4", "GRU(hidden_size=6"
)
"""Compiled sooner; the LANTM has pictures."""

LOOKUP = """
from lenmem import Evaluation, Experiment, Training
from lenmem.models.ndr import NDR
from lenmem.tasks.ndr import TableLookup

experiment = Experiment(
    TableLookup(),
    NDR(hidden_size=8, feedforward_size=8, steps=1, heads=2),
    Training(steps=2, batch_size=4, log_every=2),
    Evaluation(lengths=(2, 5), samples=4),
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with a configuration and a finished run of it."""
    path = tmp_path_factory.mktemp("work")
    (path / "tiny.py").write_text(CONFIG)
    before = os.getcwd()
    os.chdir(path)
    cli.main(["train", "tiny.py"])
    yield path
    os.chdir(before)


@pytest.fixture(scope="module")
def interrupted(folder):
    """What was printed, as one line, when a training was interrupted at step 2 of 4. Its run is in `stopped`, and once
    more in `begun`."""
    (folder / "plain.py").write_text(PLAIN)
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        patch.setattr(runs, "train_and_measure", interrupted_at_once(runs.train_and_measure))
        with pytest.raises(SystemExit) as stopped:
            cli.main(["train", "plain.py", "--directory", "stopped"])
    assert stopped.value.code == 130
    assert "Traceback" not in printed.getvalue()
    shutil.copytree(folder / "stopped", folder / "begun")
    return " ".join(printed.getvalue().split())


def run(capsys, *arguments: str) -> str:
    """What a successful call prints."""
    cli.main(list(arguments))
    return capsys.readouterr().out


def fails(capsys, *arguments: str, status: int = 2) -> str:
    """What a failing call prints to stderr."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    assert stopped.value.code == status
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err + printed.out
    return " ".join((printed.err + printed.out).split())


def test_train_writes_what_it_says(folder):
    written = {path.name for path in (folder / "runs" / "tiny").iterdir()}
    assert written >= {"metrics.jsonl", "checkpoints", "snapshots", "curve.csv", "curve.png", "curve.json"}
    lines = (folder / "runs" / "tiny" / "curve.csv").read_text().splitlines()
    assert lines[0].split(",")[:3] == ["length", "token_accuracy", "exact_match"]
    assert {"token_accuracy_low", "token_accuracy_high", "exact_match_low", "exact_match_high"} < set(
        lines[0].split(",")
    )
    assert [line.split(",")[0] for line in lines[1:]] == ["2", "5"]


def test_a_second_training_overwrites_nothing(folder, capsys):
    """A run has the name of its configuration, here another file of that name."""
    before = (folder / "runs" / "tiny" / "metrics.jsonl").read_bytes()
    (folder / "other").mkdir()
    (folder / "other" / "tiny.py").write_text(PLAIN)
    options = ("--training.steps", "2", "--model.dtype", "bfloat16", "--evaluation.lengths", "2")
    printed = run(capsys, "train", "other/tiny.py", *options)
    assert "runs/tiny-2" in printed.replace("\n", "")
    assert (folder / "runs" / "tiny" / "metrics.jsonl").read_bytes() == before


def interrupted_at_once(measured):
    """The function, with Ctrl-C after the first call of the training."""

    def interrupt(*arguments, **options):
        options["report"] = lambda entry: os.kill(os.getpid(), signal.SIGINT)
        return measured(*arguments, **options)

    return interrupt


def test_an_interrupted_training_says_how_to_go_on(folder, interrupted):
    assert "stopped; step 2 is saved" in interrupted
    command = interrupted.split("continue with lenmem ")[1].split()
    assert command == ["train", "--resume", "stopped"]
    cli.main(command)
    assert json.loads((folder / "stopped" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4


def test_evaluate_predict_plot_export(folder, capsys):
    printed = run(capsys, "evaluate", "runs/tiny", "--lengths", "3", "5", "--samples", "4")  # the program of its curve
    assert " 3 " in printed
    assert " 5 " in printed
    answer = run(capsys, "predict", "tiny", "--input", "3 1 2").split()
    assert all(0 <= int(token) < 4 for token in answer)
    printed = run(capsys, "plot", "runs/tiny", "--length", "3").replace("\n", "")
    for name in ("training.png", "key_space.png", "rows.png", "read_weights.png", "curve.png"):
        assert f"runs/tiny/{name}" in printed
        assert (folder / "runs" / "tiny" / name).stat().st_size > 1000
    run(capsys, "plot", "runs/tiny", "--step", "2")
    assert (folder / "runs" / "tiny" / "step-2" / "key_space.png").exists()
    run(capsys, "plot", "runs/tiny", "--figure", "lantm-4", "--step", "2", "--length", "3")
    drawn = {path.name for path in (folder / "figures").iterdir()}
    assert drawn == {"lantm-4-step-2.png", "lantm-4-step-4.png"}, "in the middle of training and at the end"


def test_the_same_command_is_printed(capsys, monkeypatch):
    def stop(arguments):
        raise KeyboardInterrupt("stopped; the same command continues")

    monkeypatch.setitem(cli.VERBS, "map", (stop, *cli.VERBS["map"][1:]))
    with pytest.raises(SystemExit):
        cli.main(["map", "--tasks", "odd first"])
    assert capsys.readouterr().out.splitlines()[-1] == "  lenmem map --tasks 'odd first'"


def test_an_empty_answer_is_said_beside_the_output(folder, capsys, monkeypatch):
    monkeypatch.setattr(runs, "predict", lambda *arguments, **options: [])
    cli.main(["predict", "tiny", "--input", "3 1 2"])
    output, remarks = capsys.readouterr()
    assert output == "\n" and "the answer is empty" in remarks


@pytest.mark.thorough
def test_a_training_on_the_example_of_a_task_says_so(folder, capsys):
    few = ("--training.steps", "2", "--training.seeds", "1", "--evaluation.lengths", "3", "--model.hidden-size", "8")
    said = "data: the example that comes with lenmem; --task.path reads yours"
    assert said in run(capsys, "train", "pairs", "--model", "lstm", *few, "--directory", "example")
    (folder / "own.jsonl").write_text("".join(f'{{"a": "{n}", "b": "{n}"}}\n' * 8 for n in ("1", "1 1", "1 1 1")))
    own = ("--task.path", str(folder / "own.jsonl"), "--training.batch-size", "4", "--directory", "own")
    assert "data:" not in run(capsys, "train", "pairs", "--model", "lstm", *few, *own)


def test_an_answer_is_shown_beside_the_right_one(folder, capsys):
    shown = run(capsys, "predict", "tiny", "--length", "3", "--seed", "1").splitlines()
    inputs, right, given, marks = (line[6:].split() for line in shown[:4])
    assert inputs == right[: len(inputs)]  # It copies.
    assert len(given) == len(right) == 4
    assert len(marks) == sum(a != b for a, b in zip(right, given, strict=True))
    assert shown[4] == f"{4 - len(marks)} of 4 right"
    assert "either --input or --length" in fails(capsys, "predict", "tiny")


def test_a_file_takes_the_place_of_its_run(folder, capsys):
    run(capsys, "export", "runs/tiny", "--output", "tiny.safetensors")
    whole, file = lenmem.load("runs/tiny"), lenmem.load("tiny.safetensors")
    assert (file.experiment, file.step) == (whole.experiment, whole.step)
    chex.assert_trees_all_equal(file.params, whole.params)
    typed = ("--input", "3 1 2")
    assert run(capsys, "predict", "tiny.safetensors", *typed) == run(capsys, "predict", "tiny", *typed)
    assert "has nothing at step 2; it has 4" in fails(capsys, "evaluate", "tiny.safetensors", "--step", "2")
    assert "parameters only" in fails(capsys, "import", "tiny.safetensors")
    assert "there is a file tiny.safetensors, perhaps of another run" in fails(capsys, "export", "runs/tiny")
    share.export_params("strange.safetensors", {"a": np.zeros(1)}, {"experiment": whole.manifest["experiment"]})
    assert "do not fit its experiment" in fails(capsys, "predict", "strange.safetensors", *typed)


def test_a_file_is_not_shown_with_the_curve_of_a_run_of_its_name(folder, capsys):
    """The run may have been trained again since; and its curve and pictures are not replaced by those of the file."""
    run(capsys, "export", "runs/tiny", "--output", "runs/tiny.safetensors")
    saved = folder / "runs" / "tiny" / "curve.json"
    before = saved.read_bytes()
    saved.write_text(json.dumps(json.loads(before) | {"label": "of another run"}))
    assert runs.own_curve(lenmem.load("runs/tiny")).label == "of another run"
    assert runs.own_curve(lenmem.load("runs/tiny.safetensors")).label == "LANTM"
    saved.write_bytes(before)
    files = {path: path.read_bytes() for path in saved.parent.iterdir() if path.is_file()}
    for words, name in ((("evaluate", "--save"), "curve.csv"), (("plot",), "rows.png")):
        printed = run(capsys, words[0], "runs/tiny.safetensors", *words[1:])
        assert re.search(rf"wrote runs/tiny-\d+/{name}", printed)
    assert {path: path.read_bytes() for path in saved.parent.iterdir() if path.is_file()} == files


def test_a_training_goes_on_where_its_file_is_imported(folder, capsys, interrupted):
    printed = run(capsys, "export", "begun", "--output", "away.safetensors", "--with-optimizer")
    assert printed == "wrote away.safetensors\n"
    (folder / "elsewhere" / "checkpoints").mkdir(parents=True)  # all that remains of an attempt on a full disk
    assert "at step 2 of 4" in run(capsys, "import", "away.safetensors", "--directory", "elsewhere")
    assert "already holds a run" in fails(capsys, "import", "away.safetensors", "--directory", "elsewhere")
    before = (folder / "away.safetensors").read_bytes()
    assert "is the file that is exported; choose another name" in fails(capsys, "export", "away.safetensors")
    said = fails(capsys, "export", "away.safetensors", "--output", "copy.safetensors", "--with-optimizer")
    assert "away.safetensors is a file, of which only the parameters are exported; import it first" in said
    assert (folder / "away.safetensors").read_bytes() == before
    for directory in ("begun", "elsewhere"):
        cli.main(["train", "plain.py", "--resume", "--directory", directory])
    chex.assert_trees_all_equal(lenmem.load("begun").params, lenmem.load("elsewhere").params)
    metrics = [(folder / place / "metrics.jsonl").read_text().splitlines() for place in ("begun", "elsewhere")]
    losses = [[json.loads(line)["loss"] for line in lines] for lines in metrics]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2


@pytest.mark.thorough
def test_an_encoder_is_drawn_on_what_was_typed(folder, capsys):
    (folder / "lookup.py").write_text(LOOKUP)
    run(capsys, "train", "lookup.py")
    answer = run(capsys, "predict", "lookup", "--input", "b a d 101").strip()
    assert answer in [f"{symbol:03b}" for symbol in range(8)]
    assert fails(capsys, "predict", "lookup", "--input", "b z 101").endswith("111 a b c d e f g h i j k; got 'z'")
    printed = run(capsys, "plot", "lookup", "--trace", "--input", "b a d 101").replace("\n", "")
    drawn = {path.name for path in (folder / "runs" / "lookup").glob("*.png")}
    assert drawn == {"curve.png", "attention.png", "attention_1.png", "attention_2.png", "gates.png"}
    assert all(name in printed for name in drawn - {"curve.png"})
    cli.main(["plot", "lookup", "--length", "3"])
    assert (folder / "runs" / "lookup" / "training.png").exists()


@pytest.mark.parametrize(
    ("task", "text", "inputs", "slots"),
    [
        ("ctl", "c 000", [10, 0], 1),
        ("arithmetic", "( 4 * 7 )", [0, 8, 2, 11, 1], 1),
        ("listops", "[MAX 1 [SM 3 ] ]", [10, 1, 13, 3, 14, 14], 1),
        ("scan", "walk twice", [0, 9], 49),
        ("copy", "3 127", [3, 127], 3),
    ],
)
def test_typed_inputs(task, text, inputs, slots):
    batch = runs.typed_batch(tasks.make(task), text)
    assert batch.inputs.tolist() == [inputs]
    assert batch.target_mask.shape == (1, slots)
    assert bool(batch.input_mask.all() & batch.target_mask.all() & ~batch.score_mask.any())


def test_tokens_are_separated_by_spaces():
    """In every task an unknown word is refused, even if it is made of tokens; the message lists the allowed ones."""
    for name in tasks.names():
        task = tasks.make(name)
        if not task.spec.takes_tokens:
            continue
        first, last = task.input_names[0], task.input_names[-1]
        assert runs.typed_batch(task, f"{first} {last} {first}").inputs.shape == (1, 3)
        for word in (first + last + first, "9999", "", f"{first},{last}"):
            with pytest.raises(ValueError, match=re.escape("separated by spaces, out of " + first)):
                runs.typed_batch(task, word)


def test_names_of_tokens():
    for name in tasks.names():
        task = tasks.make(name)
        assert len(set(task.input_names)) == task.spec.vocabulary
        assert len(set(task.answer_names)) == len(task.answer_names) == task.spec.output_size
    assert tasks.make("ctl").answer_names[5] == "101"
    assert tasks.make("arithmetic").answer_names[5] == "5"


@pytest.mark.parametrize("name", ["quickstart", "copy"])
def test_compare_takes_a_configuration_or_task_before_a_run_of_that_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / name / "checkpoints" / "2").mkdir(parents=True)
    with pytest.raises(SystemExit):
        cli.main(["compare", name, "--models", "lantn"])
    assert "Did you mean 'lantm'" in capsys.readouterr().err


def test_compare_reuses_the_finished_run_and_draws_both(folder, capsys):
    before = (folder / "runs" / "tiny" / "metrics.jsonl").stat().st_mtime_ns
    printed = run(capsys, "compare", "tiny.py", "--models", "lantm", "gru")
    assert "training gru on tiny" in printed
    assert "training lantm" not in printed
    assert (folder / "runs" / "tiny" / "metrics.jsonl").stat().st_mtime_ns == before
    assert "lantm" in printed
    assert (folder / "runs" / "tiny" / "gru" / "curve.json").exists()
    record = json.loads((folder / "runs" / "tiny" / "comparison" / "comparison.json").read_text())
    assert record["command"] == "lenmem compare tiny.py --models lantm gru"
    assert [network["model"] for network in record["networks"]] == ["lantm", "gru"]
    for network, directory in zip(record["networks"], ("tiny", "tiny/gru"), strict=True):
        curve = json.loads((folder / "runs" / directory / "curve.json").read_text())
        assert network["curve"]["values"] == curve["values"]
        assert from_plain(network["experiment"]) == runs.open_run(f"runs/{directory}").experiment
    optimizer = runs.open_run("runs/tiny/gru").experiment.training.optimizer
    assert optimizer == Optimizer("rmsprop", learning_rate=0.02)  # as the configuration says


def test_a_comparison_has_a_directory_of_its_own(folder, capsys):
    run(capsys, "compare", "tiny.py", "--models", "lantm", "gru")
    own, both = (folder / "runs" / "tiny" / name for name in ("curve.png", "comparison/curve.png"))
    before = own.read_bytes(), both.read_bytes()
    run(capsys, "plot", "tiny", "--length", "3")
    printed = run(capsys, "compare", "tiny.py", "--models", "gru")
    assert "training" not in printed
    assert "runs/tiny/comparison-2/curve.png" in printed
    assert (own.read_bytes(), both.read_bytes()) == before, "neither picture is drawn over the other"
    run(capsys, "compare", "tiny.py", "--models", "gru")  # the same command writes to its own place
    assert not (folder / "runs" / "tiny" / "comparison-3").exists()


@pytest.mark.thorough
def test_a_comparison_finds_its_numbered_runs(folder, capsys):
    (folder / "other.py").write_text(CONFIG)
    command = ("compare", "other.py", "--models", "gru", "--directory", "shared")
    run(capsys, *command)
    assert "training gru" in run(capsys, *command, "--training.steps", "2")
    assert "training gru" not in run(capsys, *command, "--training.steps", "2")
    assert "training gru" not in run(capsys, *command)
    assert {path.name for path in (folder / "shared").iterdir()} == {"gru", "gru-2", "comparison", "comparison-2"}


def test_list_names_everything(capsys):
    printed = run(capsys, "list")
    for name in ("quickstart", "lantm/copy", *tasks.names(), *models.names()):
        assert name in printed
    assert "Every model takes every task" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian", "quickstart"), "Did you mean 'train'? Verbs: train, evaluate"),
        (("train",), "usage: lenmem train CONFIG"),
        (("train", "quikstart"), "Did you mean 'quickstart'?"),
        (("train", "coppy"), "there is no task or configuration 'coppy'. Did you mean 'copy'"),
        (("train", "lantm/copy", "--training.stps", "3"), "--training.steps"),
        (("train", "lantm/copy", "--training.steps", "many"), "--training.steps"),
        (("train", "lantm/copy", "--training.steps", "-1"), "steps is -1; it must be an integer, at least 0"),
        (("train", "lantm/copy", "--evaluation.lengths", "0"), "at least 1, got 0"),
        (
            ("train", "lantm/copy", "--model.hidden-size", "0"),
            "LANTM.hidden_size is 0; it must be an integer, at least",
        ),
        (("evaluate", "nowhere"), "nowhere is not a run: there is no such directory."),
        (("evaluate", "tinny"), "there is no such directory. Did you mean 'runs/tiny'"),
        (("train", "tinny.py"), "there is no file tinny.py"),
        (("train", "configs/lantm/coppy.py"), "there is no file configs/lantm/coppy.py. Did you mean 'lantm/copy'"),
        (("evaluate", "tiny", "--modules", "mine.py"), "there is no file mine.py"),
        (("evaluate", "tiny/checkpoints"), "tiny/checkpoints is not a run: it has no folder checkpoints"),
        (("evaluate", "tiny", "--task.vocabulary", "5"), "the parameters are those of another network, or of another"),
        (("predict", "tiny", "--input", "3 9"), "tokens separated by spaces, out of 0 to 3; got '9'"),
        (("predict", "tiny", "--input", "1 23"), "out of 0 to 3; got '23'"),
        (("predict", "tiny", "--input", "1", "--seed", "7"), "seeds 0 to 1"),
        (("predict", "tiny", "--input", "1", "--answers", "0"), "answers is 0; it must be an integer, at least 1"),
        (("predict", "tiny", "--input", "1", "--example", "2"), "--example goes with --length"),
        (("predict", "tiny", "--length", "1", "--answers", "2"), "--answers goes with --input"),
        (("predict", "tiny", "--length", "0"), "--length is 0; it must be an integer, at least 1"),
        (("plot", "tiny", "--length", "0"), "--length is 0; it must be an integer, at least 1"),
        (("plot", "tiny", "--input", "1", "--length", "3"), "leave out --length and --example"),
        (("plot", "tiny", "--output", "pictures"), "--output goes with --figure"),
        (("plot", "tiny", "--states", "--example", "1"), "--states has examples of its own"),
        (("plot", "tiny", "--figure", "lantm-2", "--trace"), "--trace and --states go without --figure"),
        (("zoo", "lantm/reverse", "--name", "mine"), "--name has no effect on zoo"),
        (("zoo", "list"), "no network of the zoo is called list. lenmem zoo lists all of them"),
        (("reproduce", "lantm/copy", "--workers", "4"), "--workers goes with --queue"),
        (("reproduce", "lantm/copy", "--rows", "all"), "there is no row 'all'. Allowed: copy-lantm-L, copy-lantm-publ"),
        (("compile", "quickstart", "--json", "tiny.json"), "--json goes with --all"),
        (("train", "--resume", "tiny.safetensors"), "lenmem import tiny.safetensors makes a run of the file"),
        (("zoo", "card", "lantm/reverse", "--licence", "mit"), "--licence has no effect on zoo card"),
        (("beyond", "--rounds", "3"), "--rounds go with a task"),
        (("train", "copy", "--model", "lstm", "--modules", "mine.py"), "--modules: there is no file mine.py"),
        (
            ("train", "copy", "--model", "lstm", "--task.train-lengths", "4", "6", "--task.test-lengths", "2", "3"),
            "no length to measure: train_lengths is (4, 6), test_lengths (2, 3)",
        ),
        (("train", "copy", "--model", "lstm", "--nosuch", "3"), "All of them: lenmem train copy --model lstm --help"),
        (("train", "copy", "--model", "lstm", "--model.dtype", "float64"), "got 'float64'"),
        (
            ("train", "tiny.py", "--training.seed", "9" * 20),
            "seed is 99999999999999999999; it must be an integer, from",
        ),
        (("train", "tiny.py", "--directory", "runs/[x]"), "Orbax cannot write to"),
        (("predict", "tiny", "--length", "3000000000"), "lengths must be below 2^31, got 3000000000"),
        (("compare", "tiny", "--samples", "0"), "samples is 0; it must be an integer, at least 1"),
        (("export", "tiny", "--output", "tiny.txt"), "must end with .safetensors, got tiny.txt"),
        (("import", "runs/tiny"), "runs/tiny is a directory, not a safetensors file"),
        (("map", "--workers", "-1"), "--workers is -1; it must be an integer, at least 0"),
        (("reproduce", "--queue=lantm", "--workers", "0"), "--workers is 0; it must be an integer, at least 1"),
        (("reproduce", "--queue", "lantm", "--workers", "0"), "--workers is 0; it must be an integer, at least 1"),
        (("compare", "--models", "lantm"), "either a configuration or --tasks"),
        (("compare", "quickstart"), "give --models; only a configuration that defines `models`"),
        (("compare", "--tasks", "cpy", "--models", "lantm"), "'copy'"),
        (("compare", "--tasks", "copy", "--models", "lantmm"), "'lantm'"),
        (("reproduce", "lantm/copy", "--rows", "copy-lantm"), "copy-lantm-L"),
        (("plot", "tiny", "--step", "3"), "has nothing of step 3; it has 2, 4"),
        (("list", "all"), "'all' is one word too many"),
    ],
)
def test_errors_are_one_message(folder, capsys, arguments, message):
    assert message in fails(capsys, *arguments)


def test_an_evaluation_with_other_lengths_leaves_the_curve_of_the_run(folder, capsys):
    place = folder / "runs" / "tiny"
    before = (place / "curve.json").read_bytes()
    printed = run(capsys, "evaluate", "tiny", "--lengths", "5", "--samples", "2", "--save")
    assert "runs/tiny/evaluation.csv and .png" in printed
    assert (place / "curve.json").read_bytes() == before
    for name in ("evaluation.csv", "evaluation.png", "evaluation.json"):
        (place / name).unlink()


def test_an_optimiser_of_the_command_line_is_that_of_all_models():
    base, own = configs.load_config("quickstart"), configs.optimizers_of("quickstart")
    cells = runs.cross(("quickstart",), ("lstm",), base.training, base, own)
    assert cells["quickstart", "lstm"].training.optimizer == own["lstm"]
    asked = dataclasses.replace(base.training, optimizer=Optimizer("adam", 0.5))
    cells = runs.cross(("quickstart",), ("lantm", "lstm"), asked, base, own)
    assert {cell.training.optimizer.learning_rate for cell in cells.values()} == {0.5}


def test_a_quick_map_keeps_its_budget_when_one_number_changes(capsys, monkeypatch):
    def budget_of(cells, budget, results):
        raise ValueError(f"{budget} {results} {len(cells)}")

    monkeypatch.setattr(maps, "with_recorded", budget_of)
    printed = fails(capsys, "map", "--quick", "--budget.seeds", "1", "--networks", "lstm", "lstm", "--tasks", "copy")
    assert str(dataclasses.replace(maps.QUICK, seeds=1)) + " runs/map 1" in printed


@pytest.mark.parametrize(
    ("task", "model", "options", "message"),
    [
        ("'arithmetic'", "'pointer_network'", (), "PointerNetwork cannot take Arithmetic: "),
        ("'pairs', path='nowhere.tsv'", "'gru'", (), "nowhere.tsv cannot be read (No such file"),
        ("'copy'", "'gru'", ("--task.test-lengths", "5", "3"), "test_lengths is (5, 3); it must be (shortest,"),
        ("'pairs', path='.'", "'gru'", (), ". cannot be read (Is a directory"),
        ("'mathematics'", "'gru'", (), "'mathematics' is not a task. Did you mean"),
        ("'copy'", "'gru', heads=2", (), "model 'gru' has no field 'heads'"),
        ("'copy'", "'transformer', heads=3", (), "3 heads do not divide a width of 128"),
        ("'copy', vocabulary='many'", "'gru'", (), "Copy.vocabulary is 'many'; it must be an integer, at least 2"),
        (
            "'copy'",
            "'gru', dropout=1.5",
            (),
            "GRU.dropout is 1.5; it must be a finite number, at least 0 and below 1",
        ),
        ("'copy'", "'gru'", ("--training.devices", "2", "--training.batch-size", "3"), "does not divide batch_size=3"),
    ],
)
def test_what_cannot_be_trained_is_one_message(tmp_path, monkeypatch, capsys, task, model, options, message):
    monkeypatch.chdir(tmp_path)
    made = f"lenmem.Experiment(lenmem.tasks.make({task}), lenmem.models.make({model}))"
    (tmp_path / "wrong.py").write_text(f"import lenmem\n\nexperiment = {made}\n")
    assert message in fails(capsys, "train", "wrong.py", *options)
    assert not (tmp_path / "runs" / "wrong" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiment = Experiment(Copy(), LANTM(hiden_size=3))", "'hiden_size'. Did you mean 'hidden_size'?"),
        ("experiment = Experiment(Copy(), LANTM(", "wrong.py, line 4: SyntaxError: '(' was never closed"),
        ("experiment = Experiment(Cpy(), LANTM())", "wrong.py, line 4: NameError: name 'Cpy' is not defined"),
        ("experiment = Experiment('copy', LANTM())", "Experiment.task is 'copy'; it must be a Task"),
        ("experiment = Experiment(Copy(), LANTM)", "Experiment.model is <class "),
        (
            "experiment = Experiment(Copy(), LANTM(), Training(steps='9'))",
            "Training.steps is '9'; it must be an integer",
        ),
        ("experiment = LANTM()", "must define `experiment = Experiment(...)`, got LANTM"),
        ("experimnt = Experiment(Copy(), LANTM())", "must define `experiment = Experiment(...)`, it has none"),
    ],
)
def test_a_configuration_that_is_wrong_is_one_message(tmp_path, capsys, text, message):
    imports = (
        "from lenmem import Experiment, Training\nfrom lenmem.models import LANTM\nfrom lenmem.tasks import Copy\n"
    )
    (tmp_path / "wrong.py").write_text(f"{imports}{text}\n")
    assert message in fails(capsys, "train", str(tmp_path / "wrong.py"))


@pytest.mark.parametrize(
    ("verb", "text", "message"),
    [
        ("compare", "models = [1]", "`models` must be a dict, got a list"),
        ("compare", "optimizers = 3", "`optimizers` must be a dict, got a int"),
        ("sweep", "over = ['training.steps']", "`over` must be a dict, got a list"),
        ("sweep", "over = {'training.steps': 20}", "over['training.steps'] must be a tuple of values, got 20"),
    ],
)
def test_further_names_of_a_configuration_that_are_wrong_are_one_message(tmp_path, capsys, verb, text, message):
    (tmp_path / "wrong.py").write_text(f"{PLAIN}{text}\n")
    words = ("--models", "gru") if verb == "compare" else ()
    assert message in fails(capsys, verb, str(tmp_path / "wrong.py"), *words)


def test_a_module_of_lenmem_in_a_configuration_is_no_field_of_it(tmp_path):
    (tmp_path / "imports.py").write_text(f"from lenmem import models\n{PLAIN}")
    assert configs.models_of(tmp_path / "imports.py") == {}


def test_a_step_is_measured_although_a_later_one_is_damaged(folder, capsys):
    shutil.copytree(folder / "runs/tiny", folder / "half")
    (folder / "half/checkpoints/4/about/metadata").unlink()
    assert "checkpoints/4 is damaged" in fails(capsys, "evaluate", "half")
    assert " 3 " in run(capsys, "evaluate", "half", "--step", "2", "--lengths", "3", "--samples", "4")


def test_memory_that_does_not_exist_is_one_message(tmp_path, monkeypatch, capsys):
    """A stack of 10^10 cells, for 32 rows."""
    monkeypatch.chdir(tmp_path)
    words = "train reverse_string --model stack_rnn_vector --model.slots 10000000000 --training.steps 10"
    with pytest.raises(SystemExit) as ended:
        cli.main(f"{words} --training.log-every 10 --training.checkpoint-every 0".split())
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: out of memory: a step needs [\d,.]+ GiB; try a smaller batch, .*\n", error)


def test_a_pair_that_cannot_work_shows_its_reason():
    class Picky(type(experiment().model)):
        def supports(self, spec):
            return "needs integers"

    cells = runs.cross(["copy"], ["lantm"], experiment().training)
    assert not isinstance(cells["copy", "lantm"], str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lenmem.models.make", lambda name: Picky())
        cells = runs.cross(["copy"], ["picky"], experiment().training)
    assert cells["copy", "picky"] == "needs integers"
    double = runs.cross(["copy"], ["lantm", "two"], experiment().training, named={"two": models.LANTM(2)})
    assert [cell.model.hidden_size for cell in double.values()] == [50, 2]  # pyright: ignore
    named = runs.cross(["lantm/double"], ["lantm", "ndr"], experiment().training)
    assert {type(cell.task).__name__ for cell in named.values() if not isinstance(cell, str)} == {"Double"}


@pytest.mark.thorough
def test_a_processor_is_divided_into_the_devices_asked_for(tmp_path):
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_FLAGS", "JAX_NUM_CPU"))}
    words = "train copy --model lstm --model.hidden-size 4 --training.steps 2 --training.log-every 2"
    for count in (1, 2):
        options = ("--training.devices", str(count), "--training.batch-size", "4", "--directory", f"run-{count}")
        command = [sys.executable, "-m", "lenmem", *words.split(), *options]
        subprocess.run(command, cwd=tmp_path, env=unset, capture_output=True, check=True)
    runs = [lenmem.load(tmp_path / f"run-{count}") for count in (1, 2)]
    assert [run.manifest["environment"]["devices"] for run in runs] == [1, 2]
    losses = [json.loads((run.directory / "metrics.jsonl").read_text())["loss"] for run in runs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


@pytest.mark.thorough
def test_tables_in_a_pipe_are_not_folded_at_80_columns():
    program = (
        "from lenmem.cli.terminal import console; from rich.table import Table; console.print(Table('column' * 20))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "column" * 20 in run.stdout
    narrow = subprocess.run(
        [sys.executable, "-c", program], env=environment | {"COLUMNS": "60"}, capture_output=True, text=True, check=True
    )
    assert max(map(len, narrow.stdout.splitlines())) <= 60


@pytest.mark.thorough
def test_a_command_keeps_its_programs_for_the_next_one(tmp_path):
    """Two trainings of one program: the second one stores nothing, since it finds all. Old programs are deleted, and
    damaged ones compiled again."""
    unset = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    cache = {"LENMEM_CACHE": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    kept = tmp_path / "cache" / "programs"
    kept.mkdir(parents=True)
    old = kept / "old-cache"
    old.touch()
    os.utime(old, (0, 0))
    words = "train copy --model lstm --model.hidden-size 4 --training.steps 2 --training.log-every 2 --training.seed"

    def train(number: str) -> dict[str, int]:
        """The programs after a training, each with its time of writing."""
        command = [sys.executable, "-m", "lenmem", *words.split(), number, "--directory", f"run-{number}"]
        run = subprocess.run(command, cwd=tmp_path, env=unset | cache, capture_output=True, check=True)
        assert not run.stderr
        return {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}

    first = train("0")
    assert any("advance" in name for name in first) and "old-cache" not in first
    assert train("1") == first
    for program in kept.iterdir():
        os.truncate(program, program.stat().st_size // 2)
    train("2")


def test_programs_are_kept_where_the_user_wants(tmp_path, monkeypatch):
    chosen = []
    monkeypatch.setattr(jax.config, "update", lambda name, value: chosen.append((name, value)))
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    keep_programs()
    assert not chosen and not (tmp_path / "cache").exists()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    (tmp_path / "file").touch()
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path / "file"))  # no directory can be made there
    keep_programs()
    assert not chosen
    monkeypatch.setenv("LENMEM_CACHE", str(tmp_path / "cache"))
    keep_programs()
    assert chosen == [("jax_compilation_cache_dir", str(tmp_path / "cache" / "programs"))]
