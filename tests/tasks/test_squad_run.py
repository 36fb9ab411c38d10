"""The paper's command on files in the published form and tiny weights in Hugging Face's: train, score, answer, save."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lenmem import Experiment, cli, load
from lenmem.data import squad, wordpiece
from lenmem.experiment import export_run
from lenmem.models import hugging_face
from lenmem.reproduce import reproduce, rows_of
from lenmem.tasks.squad import Squad
from lenmem.training.run_directory import read_metrics
from tests.models import test_bert

PIECES = wordpiece.example()
SIZES = test_bert.CONFIG | {"vocab_size": len(PIECES), "max_position_embeddings": 40}
OPTIONS = (
    "--task.vocabulary-size 181 --task.max-length 40 --task.stride 20 --task.question-pieces 6 "
    "--model.hidden-size 10 --model.layers 2 --model.heads 2 --model.feedforward-size 12 --model.max-positions 40 "
    "--model.pointer-size 6 --model.bits 6 --model.mlp-size 5 "
    "--training.steps 4 --training.batch-size 8 --training.log-every 2 --training.checkpoint-every 2 "
    "--training.widths 1 --evaluation.lengths 16 64 --evaluation.samples 4"
)
TINY = OPTIONS.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Files and weights where the configuration looks for them."""
    folder = tmp_path_factory.mktemp("squad")
    (folder / "data" / "squad").mkdir(parents=True)
    for name, contents in squad.example().items():
        (folder / "data" / "squad" / name).write_text(json.dumps(contents), encoding="utf-8")
    weights = test_bert.write(folder / "data" / "bert-base-uncased", SIZES)
    (weights / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.mark.slow
def test_one_command_fine_tunes_and_others_score_and_answer(inside, capsys):
    """The configuration with other sizes: BERT moves away from its weights, a little."""
    cli.main(["train", "panm/squad_80", *TINY, "--directory", "runs/tiny"])
    run = load("runs/tiny")
    assert run.step == 4 and getattr(run.experiment.training.optimizer, "learning_rate", 0) == 5e-5
    assert [entry["step"] for entry in read_metrics(Path("runs/tiny"))] == [2, 4]
    given = run.experiment.bound_model.pretrained()["bert"]
    now = run.params["bert"]["pieces"]["embedding"][0]
    change = np.abs(now - given["pieces"]["embedding"])
    assert 0 < change.max() < 4 * 5e-5 * 1.5
    capsys.readouterr()

    cli.main(["evaluate", "runs/tiny"])
    printed = capsys.readouterr().out
    told = r"on the test: ([\d.]+) \(in percent, 48 questions\)$"
    (f1,), (em,) = (re.findall(rf"^{name} {told}", printed, re.MULTILINE) for name in ("F1", "EM"))
    assert 0 <= float(em) <= float(f1) <= 100

    context = "Ada took the old map to the forge. Ben took the old coin to the mill."
    cli.main(["predict", "runs/tiny", "--input", f"Where is the coin? | {context}"])
    answer = capsys.readouterr().out.removesuffix("\n")
    assert answer and answer in context
    cli.main(["predict", "runs/tiny", "--input", f"Who took it? | {'Nobody came. ' * 20}{context}"])
    assert capsys.readouterr().out.removesuffix("\n") in "Nobody came. " * 20 + context
    cli.main(["predict", "runs/tiny", "--length", "16"])
    assert "of 2 right" in capsys.readouterr().out

    export_run(run, "tiny.safetensors")
    Path("data/bert-base-uncased/model.safetensors").rename("elsewhere")  # a trained network does not need them
    try:
        again = load("tiny.safetensors")
        np.testing.assert_array_equal(again.params["bert"]["pieces"]["embedding"][0], now)
        assert again.experiment.task.reply(f"Where is the coin? | {context}", lambda b: again.apply(*b[:3])) == [answer]
    finally:
        Path("elsewhere").rename("data/bert-base-uncased/model.safetensors")


@pytest.mark.parametrize("text", ["Where is it?", "| It is here.", "Where? |"])
def test_an_input_of_another_form_is_one_line(inside, text):
    with pytest.raises(ValueError, match=r"^the input must be a question and a text, as in 'where is it\? \| it is"):
        Squad(vocabulary_size=181).reply(text, lambda batch: None)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--model.weights", "nowhere"], r"nowhere/config\.json cannot be read"),
        (["--task.directory", "nowhere"], r"nowhere/train-v1\.1\.json cannot be read"),
        (["--task.vocabulary", "nowhere"], r"nowhere cannot be read"),
        (["--model.layers", "3"], r"config\.json has num_hidden_layers 2, but the model has layers 3"),
        (["--task.separator", "4"], r"has \[SEP\] at id 102; separator is 4"),
    ],
)
def test_nothing_is_written_before_files_and_weights_are_read(inside, options, message, capsys):
    before = sorted(Path().rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "panm/squad_80", *TINY, "--directory", "runs/wrong", *options])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and re.search(message, error) and len(error.splitlines()) == 1
    assert sorted(Path().rglob("*")) == before


@pytest.mark.slow
def test_the_rows_of_the_table_are_recorded(inside, tmp_path):
    """F1 and EM of one training, in percent beside the printed numbers; the second row trains nothing."""
    rows = rows_of("panm/squad_80")
    names = "squad_80-bert-f1", "squad_80-bert-em"
    tiny: dict[str, Any] = {}
    for name in names:
        whole = rows[name].experiment
        sizes = {"vocabulary_size": len(PIECES), "max_length": 40, "stride": 20, "question_pieces": 6}
        tiny[name] = Experiment(
            dataclasses.replace(whole.task, **sizes),
            whole.model.clone(**hugging_face.fields_in("data/bert-base-uncased")),
            dataclasses.replace(whole.training, steps=2, batch_size=4, log_every=2, checkpoint_every=2, widths=1),
            dataclasses.replace(whole.evaluation, lengths=(16,), samples=2, batch_size=64),
        )
    where: dict[str, Any] = {"results": tmp_path / "results", "runs": tmp_path / "runs", "command": "tested"}
    records = [
        reproduce("panm", name, dataclasses.replace(rows[name], experiment=tiny[name]), **where) for name in names
    ]
    f1, em = (record["measured"][name] for record, name in zip(records, ("f1", "em"), strict=True))
    assert (f1["paper"], em["paper"]) == (77, 64)
    assert 0 <= em["median"] <= f1["median"] <= 100
    assert f1["seeds"] == records[1]["measured"]["f1"]["seeds"]
    assert [path.name for path in (tmp_path / "runs" / "panm").iterdir()] == ["squad_80-bert-f1"]
