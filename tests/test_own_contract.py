"""`lenmem.check`: every broken rule of a task or a network is found, by its name, and nothing else is."""

from __future__ import annotations

import dataclasses
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import lenmem
from lenmem import cli, models, tasks
from lenmem.contract import check_model
from lenmem.nn import Aligned, Transducer
from lenmem.tasks import Copy
from lenmem.tasks.contract import broken, check_task
from lenmem.tasks.groups import WordProblem
from tests.test_cli import run

TASK = Copy(vocabulary=5, train_lengths=(1, 4), test_lengths=(5, 8))
COUNTER = itertools.count(1)
TRAINING = lenmem.Training(steps=2, seeds=1, batch_size=4, log_every=2)


def problems(findings) -> dict[str, str]:
    """requirement -> problem of what is broken."""
    return {requirement: problem for requirement, problem in broken(findings) if problem is not None}


# Tasks ----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Wrong(Copy):
    """Copying, with a fault of choice."""

    fault: str = ""

    @property
    def spec(self):
        spec = super().spec
        if self.fault == "end":
            return dataclasses.replace(spec, length_rule="end")
        return dataclasses.replace(spec, alignment="aligned") if self.fault == "aligned" else spec

    def shapes(self, capacity):
        return capacity if self.fault == "shapes" else super().shapes(capacity)

    def sample(self, key, length, capacity):
        example = super().sample(key, length, capacity)
        inputs, mask, targets, asked, scored = example
        first, slots = jnp.arange(capacity) == 0, jnp.arange(capacity)
        answers = jnp.arange(targets.shape[0])
        faults = {
            "tuple": lambda: tuple(example),
            "float": lambda: example._replace(targets=targets * 1.0),
            "size": lambda: example._replace(target_mask=jnp.append(asked, False)),
            "id": lambda: example._replace(inputs=inputs + self.vocabulary * first),
            "target": lambda: example._replace(targets=targets - 10 * (answers == 0)),
            "gap": lambda: example._replace(input_mask=mask & (slots != 1)),
            "empty": lambda: example._replace(input_mask=mask & (length > 1)),
            "scored": lambda: example._replace(score_mask=jnp.ones_like(scored)),
            "end": lambda: example._replace(score_mask=scored & (answers < length)),
            "unscored": lambda: example._replace(score_mask=jnp.zeros_like(scored)),
            "aligned": lambda: example._replace(target_mask=jnp.ones_like(asked)),
            "constant": lambda: super(Wrong, self).sample(jax.random.key(0), length, capacity),
            "impure": lambda: example._replace(inputs=(inputs + next(COUNTER) * first) % self.vocabulary),
            "capacity": lambda: example._replace(targets=(targets + capacity * (answers == 0)) % self.vocabulary),
            "longer": lambda: example._replace(input_mask=slots < capacity),
        }
        return faults.get(self.fault, lambda: example)()

    def loss(self, outputs, batch):
        if self.fault == "loss":
            return jnp.mean(jnp.square(outputs))
        return jnp.zeros(3) if self.fault == "losses" else super().loss(outputs, batch)

    def metrics(self, outputs, batch):
        values = super().metrics(outputs, batch)
        if self.fault == "metric":
            values["share"] = jnp.mean(jnp.argmax(outputs, -1) == batch.targets, axis=-1)
        if self.fault == "scalar":
            values["share"] = jnp.mean(values["exact_match"])
        return values


FAULTS = {
    "shapes": "`shapes` returns 1 at capacity 1; it must be two integers, (inputs, answer slots)",
    "tuple": "`sample` returns a tuple; it must return a lenmem.Example",
    "float": "at capacity 1, `targets` is float32[2]; it must be int[2]",
    "size": "at capacity 1, `target_mask` is bool[3]; it must be bool[2]",
    "id": "in an example of length 1; spec.vocabulary is 5",
    "target": "in an example of length 1; spec.output_size is 6",
    "gap": "`input_mask` has a gap in an example of length 3; real positions come first, then padding",
    "empty": "`input_mask` is False everywhere in an example of length 1",
    "scored": "a slot is scored that is not in `target_mask`, in an example of length 1",
    "unscored": "no slot of any example is scored",
    "aligned": "an answer slot has no input in an example of length 1; spec.alignment is 'aligned'",
    "end": "the end symbol, 5, is not scored in an example of length 1",
    "constant": "two keys gave the same examples",
    "impure": "the same key gave other examples; all random numbers must come from jax.random and the key",
    "capacity": "`targets` of the same key and length is another one at capacity 4 and at 7",
    "longer": "`input_mask` of the same key and length is another one at capacity 4 and at 7",
    "loss": "the loss depends on what padding contains; mask it with `score_mask`",
    "losses": "the loss is an array [3]; it must be a finite number",
    "metric": "the metric 'share' depends on what padding contains; mask it with `score_mask`",
    "scalar": "the metric 'share' has the shape []; it must be one value per example",
}
DRAWN = [fault for fault in FAULTS if fault not in ("loss", "losses", "metric", "scalar")]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_rule_of_a_task_is_found(fault):
    task = Wrong(vocabulary=5, train_lengths=(1, 4), test_lengths=(5, 8), fault=fault)
    found = problems(check_task(task))
    assert any(FAULTS[fault] in problem for problem in found.values()), found
    assert len(found) <= 2  # what follows from the fault, such as the capacity of a mask that is too long


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sample", lambda self, key, length, capacity: range(length), "test_own_contract.py, line "),
        ("sample", lambda self, key, length, capacity: 1 if length > 3 else 2, "needs the number of `length`"),
        ("sample", lenmem.Task.sample, "Wrong does not define `sample`"),
        ("shapes", lenmem.Task.shapes, "Wrong does not define `shapes`"),
        ("test_lengths", lenmem.Task.test_lengths, "Wrong does not define `test_lengths`"),
    ],
)
def test_what_a_task_lacks_is_found(monkeypatch, name, value, message):
    task = Wrong(vocabulary=5, train_lengths=(1, 4), test_lengths=(5, 8))
    monkeypatch.setattr(Wrong, name, value, raising=False)
    ((_, problem),) = problems(check_task(task)).items()
    assert message in problem


def test_a_right_task_has_no_problem():
    assert not problems(check_task(Wrong(vocabulary=5, train_lengths=(1, 4), test_lengths=(5, 8))))


@pytest.mark.parametrize("fault", ["id", "gap", "capacity"])
def test_a_task_of_ones_own_is_tried_before_its_training(fault, tmp_path):
    """Only what concerns the examples, since it takes a second; nothing was written."""
    task = Wrong(vocabulary=5, train_lengths=(1, 4), fault=fault)
    experiment = lenmem.Experiment(task, models.make("gru", hidden_size=3, embedding_size=3), TRAINING)
    with pytest.raises(ValueError, match="Wrong breaks a rule of tasks") as caught:
        lenmem.train(experiment, directory=tmp_path / "run")
    assert FAULTS[fault] in str(caught.value) and not (tmp_path / "run").exists()


def test_train_lengths_that_are_no_range():
    class Reversed(WordProblem):
        train_lengths = property(lambda self: (4, 1))  # pyright: ignore[reportAssignmentType]

    with pytest.raises(ValueError, match=r"train_lengths is \(4, 1\); it must be \(shortest, longest\), ascending"):
        check_task(object.__new__(Reversed))


# Networks -------------------------------------------------------------------------------------------------------------


class Slots(nn.Module):
    """A sum of embedded inputs and a layer for the slots, with a fault of choice."""

    fault: str = ""
    spec: lenmem.Spec | None = None

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        spec = self.spec
        assert spec is not None
        asked = target_mask.shape[1]
        embedded = nn.Embed(spec.vocabulary, 8)(jnp.clip(inputs, 0, spec.vocabulary - 1))
        if self.fault == "padding":
            summary = jnp.sum(embedded, axis=1)
        else:
            summary = jnp.sum(embedded * input_mask[..., None], axis=1)
        if self.fault == "mean":
            summary = summary / inputs.shape[1]
        if self.fault == "batch":
            summary = summary - jnp.mean(summary, axis=0)
        size = (inputs.shape[1], 8) if self.fault == "length" else (64, 8)
        places = self.param("places", nn.initializers.normal(1.0), size)[:1]
        hidden = nn.relu(nn.Dense(16)(summary[:, None] + jnp.arange(asked)[:, None] * places))
        outputs = nn.Dense(spec.output_size)(hidden)
        if self.fault == "leak" and targets is not None:
            outputs = outputs + jax.nn.one_hot(targets, spec.output_size)
        if self.fault == "nan":
            outputs = outputs / jnp.zeros(())
        if self.fault == "gradient":
            outputs = jax.lax.stop_gradient(outputs)
        return {"shape": lambda: outputs[:, :1], "int": lambda: jnp.argmax(outputs, -1)}.get(
            self.fault, lambda: outputs
        )()


MODEL_FAULTS = {
    "length": "places is (4, 8) at capacity 4 and (9, 8) at 9",
    "shape": "for 2 rows of 1 inputs and 2 answer slots it is float32[2, 1, 6], not float[2, 2, 6]",
    "int": "for 2 rows of 1 inputs and 2 answer slots it is int32[2, 2], not float[2, 2, 6]",
    "nan": "an output at a real answer slot is not finite",
    "gradient": "the gradient of every parameter is 0",
    "padding": "other padding in `inputs` gives other answers; use `input_mask`",
    "mean": "the same rows with more padding have other answers",
    "batch": "the same rows alone have other answers",
    "leak": "in training, the target of the last slot changes the output at that slot or before",
}


@pytest.mark.parametrize("fault", MODEL_FAULTS)
def test_a_broken_rule_of_a_network_is_found(fault):
    found = list(problems(check_model(lenmem.Experiment(TASK, Slots(fault), TRAINING))).values())
    follows = [MODEL_FAULTS["mean"]] if fault == "padding" else []  # more padding contains more of it
    assert found == [MODEL_FAULTS[fault], *follows]


def test_an_answer_that_sees_the_future_is_found():
    class Total(nn.Module):
        @nn.compact
        def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
            states = nn.Embed(2, 8)(jnp.clip(inputs, 0, 1)) * input_mask[..., None]
            return nn.Dense(2)(states + jnp.sum(states, axis=1, keepdims=True))

    task = WordProblem(group="Z2", train_lengths=(2, 4), test_lengths=(5, 6))
    found = problems(check_model(lenmem.Experiment(task, Total(), TRAINING)))
    assert found == {
        "causal answers do not see later inputs": "another last input changes earlier answers; the task is causal"
    }
    assert not problems(check_model(lenmem.Experiment(task, Aligned(nn.GRUCell(8)), TRAINING)))


def test_a_module_without_the_interface_of_a_model_is_refused():
    task = tasks.make("copy")
    with pytest.raises(ValueError, match=r"GRUCell cannot take Copy: .* with \(carry, inputs\); lenmem.nn.Transducer"):
        lenmem.Experiment(task, nn.GRUCell(8))
    with pytest.raises(ValueError, match=r"Dense cannot take Copy: a model is called with .*, this with \(inputs\)$"):
        lenmem.Experiment(task, nn.Dense(8))


@pytest.mark.parametrize("model", [Slots(), Transducer(nn.GRUCell(4)), models.make("transformer", layers=1)])
def test_a_right_network_has_no_problem(model):
    assert not problems(lenmem.check(lenmem.Experiment(TASK, model, TRAINING)))


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names())
def test_the_networks_of_lenmem_have_no_problem(name):
    """On the first of a few tasks that they can take."""
    tasks_ = TASK, WordProblem(group="S3", train_lengths=(2, 5)), lenmem.tasks.make("dyck")
    model = models.make(name)
    task = next(itertools.dropwhile(lambda task: models.supports(model, task.spec) is not None, tasks_), None)
    if task is None:
        pytest.skip("it takes none of these tasks")
    assert not problems(lenmem.check(lenmem.Experiment(task, model, TRAINING)))


# The verb -------------------------------------------------------------------------------------------------------------


def test_check_prints_a_line_for_each_rule(capsys, tmp_path, monkeypatch):
    words = ("--task.vocabulary", "5", "--task.train-lengths", "1", "4", "--model.hidden-size", "4")
    printed = run(capsys, "check", "copy", "--model", "gru", *words)
    assert printed.count("ok ") == len(lenmem.check(lenmem.Experiment(TASK, Slots(), TRAINING)))
    assert "BROKEN" not in printed

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import lenmem\nfrom tests.test_own_contract import TASK, TRAINING, Slots\n"
        "experiment = lenmem.Experiment(TASK, Slots('mean'), TRAINING)\n"
    )
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "mine.py"])
    assert ended.value.code == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "BROKEN the amount of padding has no influence: the same rows with more padding have other answers" in printed
    )
