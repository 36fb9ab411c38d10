"""DNC and NTM against twins that run whole rows slot by slot in float64, and the effect of a larger memory."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models.dnc import DNC, Access, DNCCell, DNCState
from lenmem.models.ntm import NTM
from lenmem.nn.cells import GRUCell
from lenmem.nn.controllers import LSTMController
from lenmem.nn.recurrence import scan_cell
from lenmem.tasks.base import draw
from lenmem.tasks.lantm import Copy
from lenmem.tasks.ndr import TableLookup
from lenmem.types import Step
from tests.drawing import drawn
from tests.learning import briefly
from tests.models.twin import Commands, random_parameters, sigmoid, softmax, softplus
from tests.ops.test_addressing import allocation_twin, content_twin
from tests.ops.test_states import twin as similarity_twin

TASK = Copy(vocabulary=4, train_lengths=(1, 6))
LENGTHS = (4, 1, 6)
small = {"hidden_size": 7, "slots": 9, "width": 4}
improved = {"masking": True, "deallocation": True, "link_sharpness": True, "plain_lengths": True}
peephole = {"controller": "peephole", "compression": True}


@functools.cache
def batch_of(task):
    return jax.jit(lambda key: draw(task, key, jnp.asarray(LENGTHS), max(LENGTHS)))(jax.random.key(3))


def bound(model, task=TASK):
    return model.clone(spec=task.spec)


def call(model, params, task=TASK, **options):
    batch = batch_of(task)
    run = briefly(lambda p: model.apply({"params": p}, batch.inputs, batch.input_mask, batch.target_mask, **options))
    return run(params)


def params_of(model, scale=0.7, task=TASK):
    return random_parameters(bound(model, task), batch_of(task), scale)


def float64(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


# Twins ----------------------------------------------------------------------------------------------------------------


class Controller:
    """The three controllers, one row; output and state are clipped."""

    def __init__(self, model, params):
        self.model, self.p = model, params
        if model.controller != "feedforward":
            self.c = params["start_cell"]
            self.h = params.get("start_hidden")

    def __call__(self, x):
        if self.model.controller == "feedforward":
            for layer in range(3):
                p = self.p[f"layer_{layer}"]
                x = (np.tanh(x) if layer else x) @ p["kernel"] + p["bias"]
            return self.clipped(x)
        fed_back = self.h if self.model.controller == "lstm" else self.c
        f, i, o, g = np.split(np.concatenate([x, fed_back]) @ self.p["kernel"] + self.p["bias"], 4)
        self.raw = self.c = sigmoid(f) * self.c + sigmoid(i) * np.tanh(g)
        self.h = sigmoid(o) * np.tanh(self.c)  # tanh(raw), which with compression is c itself
        if getattr(self.model, "compression", False):
            self.c = np.tanh(self.c)
        self.c, self.h = self.clipped(self.c), self.clipped(self.h)
        return self.h

    def clipped(self, x):
        return np.clip(x, -self.model.clip, self.model.clip)


class DNCTwin:
    """One row of a DNC, after the Methods of Graves et al. (2016) and the three changes of Csordás & Schmidhuber."""

    def __init__(self, model, params):
        self.model, self.p = model, params["cell"]
        self.content = functools.partial(content_twin, below_root=0 if model.plain_lengths else 1e-6)
        self.controller = Controller(model, self.p["controller"])
        n, w, r = model.slots, model.width, model.read_heads
        self.M, self.u, self.L, self.prec = np.zeros((n, w)), np.zeros(n), np.zeros((n, n)), np.zeros(n)
        self.ww, self.wr, self.r = np.zeros(n), np.zeros((r, n)), np.zeros((r, w))

    def step(self, x):
        model, n, w, r = self.model, self.model.slots, self.model.width, self.model.read_heads
        self.h = self.controller(np.concatenate([x, self.r.ravel()]))
        commands = Commands(self.p["interface"], self.h)
        read_keys, read_strengths = commands.take(r * w).reshape(r, w), 1 + softplus(commands.take(r))
        write_key, write_strength = commands.take(w), 1 + softplus(commands.take_one())
        erase, vector = sigmoid(commands.take(w)), commands.take(w)
        free, g_a, g_w = sigmoid(commands.take(r)), sigmoid(commands.take_one()), sigmoid(commands.take_one())
        modes = softmax_rows(commands.take(3 * r).reshape(r, 3))
        read_mask, write_mask = None, None
        if model.masking:
            read_mask, write_mask = sigmoid(commands.take(r * w)).reshape(r, w), sigmoid(commands.take(w))[None]

        retained = np.prod(1 - free[:, None] * self.wr, axis=0)
        self.u = (self.u + self.ww - self.u * self.ww) * retained
        allocation = allocation_twin(self.u)
        looked_up = self.content(self.M, write_key[None], [write_strength], write_mask)[0]
        self.ww = g_w * (g_a * allocation + (1 - g_a) * looked_up)
        self.M = self.M * (1 - np.outer(self.ww, erase))
        if model.deallocation:
            self.M = self.M * retained[:, None]
        self.M = self.M + np.outer(self.ww, vector)
        link = np.zeros((n, n))
        for i in range(n):
            for j in set(range(n)) - {i}:
                link[i, j] = (1 - self.ww[i] - self.ww[j]) * self.L[i, j] + self.ww[i] * self.prec[j]
        self.L, self.prec = link, (1 - self.ww.sum()) * self.prec + self.ww
        forward, backward = self.wr @ link.T, self.wr @ link
        if model.link_sharpness:
            forward, backward = (sharper(d, 1 + softplus(commands.take(r))) for d in (forward, backward))
        looked_up = self.content(self.M, read_keys, read_strengths, read_mask)
        self.wr = modes[:, :1] * backward + modes[:, 1:2] * looked_up + modes[:, 2:] * forward
        self.r = self.wr @ self.M
        self.traces = {
            "read_weights": self.wr,
            "write_weights": self.ww,
            "usage": self.u,
            "allocation_gate": g_a,
            "write_gate": g_w,
            "read_modes": modes,
            "link": self.L,
        }


def sharper(direction, sharpness):
    raised = direction + 1e-6
    powers = (raised / raised.max(1, keepdims=True)) ** sharpness[:, None]
    return powers / powers.sum(1, keepdims=True)


def softmax_rows(x):
    return np.array([softmax(row) for row in x])


class NTMTwin:
    """One row of an NTM, after section 3 of Graves et al. (2014)."""

    def __init__(self, model, params):
        self.model, self.p = model, params["cell"]
        self.controller = Controller(model, self.p["controller"])
        self.M = np.full((model.slots, model.width), 1e-6)
        self.w = [np.eye(model.slots)[0] for _ in range(2 * model.heads)]
        self.r = np.full((model.heads, model.width), 1e-6)

    def step(self, x):
        model, heads = self.model, self.model.heads
        self.h = self.controller(np.concatenate([x, self.r.ravel()]))
        commands = Commands(self.p["interface"], self.h)
        keys, strengths = commands.take(2 * heads * model.width).reshape(2 * heads, -1), commands.take(2 * heads)
        gates, shifts = sigmoid(commands.take(2 * heads)), commands.take(2 * heads * model.shifts)
        sharpness = 1 + softplus(commands.take(2 * heads))
        erase, add = (commands.take(heads * model.width).reshape(heads, -1) for _ in range(2))
        shifts = softmax_rows(shifts.reshape(2 * heads, -1))

        def move(head):
            looked_up = content_twin(self.M, keys[head][None], [softplus(strengths[head])])[0]
            gated = gates[head] * looked_up + (1 - gates[head]) * self.w[head]
            moved = np.zeros(model.slots)
            for i in range(model.slots):
                for number in range(model.shifts):
                    moved[i] += gated[(i - number + model.shifts // 2) % model.slots] * shifts[head][number]
            self.w[head] = moved ** sharpness[head] / np.sum(moved ** sharpness[head])

        for head in range(heads):
            move(head)
        for head in range(heads):
            self.M = self.M * (1 - np.outer(self.w[head], sigmoid(erase[head])))
        for head in range(heads):
            self.M = self.M + np.outer(self.w[head], add[head])
        for head in range(heads, 2 * heads):
            move(head)
        self.r = np.array(self.w[heads:]) @ self.M
        self.traces = {
            "write_weights": np.array(self.w[:heads]),
            "read_weights": np.array(self.w[heads:]),
            "interpolation_gate": gates,
            "shift": shifts,
        }


MACHINES = {
    "dnc": (DNCTwin, DNC(**small, read_heads=2, clip=0.3)),
    "compressed": (DNCTwin, DNC(**small, read_heads=2, link_sharpness=True, **peephole)),
    "improved": (DNCTwin, DNC(**small, read_heads=2, compression=True, **improved)),
    "stateless": (DNCTwin, DNC(**small, read_heads=1, controller="feedforward", masking=True, clip=0.5)),
    "peephole": (DNCTwin, DNC(**small, read_heads=3, controller="peephole", deallocation=True)),
    "ntm": (NTMTwin, NTM(**small, heads=2)),
    "stateless_ntm": (NTMTwin, NTM(**small, heads=1, controller="feedforward", shifts=5, clip=0.5)),
}


@pytest.mark.parametrize("name", MACHINES)
def test_whole_rows_equal_the_twin(name):
    """Slots are sorted by content, since the order of equal, empty slots depends on rounding."""
    twin, model = MACHINES[name]
    model = bound(model)
    params = params_of(model)
    outputs, mutated = call(model, params, mutable=["traces"])
    cell = mutated["traces"]["cell"]
    params, batch, symbols = float64(params), batch_of(TASK), TASK.spec.vocabulary
    for row, length in enumerate(LENGTHS):
        machine, head = twin(model, params), params["head"]["Dense_0"]
        tokens = [*np.asarray(batch.inputs[row][:length]), symbols + 1]  # then the delimiter, then zeros
        for time in range(2 * length + 2):
            machine.step(np.eye(symbols + 3)[tokens[time]] if time <= length else np.zeros(symbols + 3))
            for trace, expected in machine.traces.items():
                got = np.asarray(cell[trace][0][time, row])
                if trace == "link":
                    got, expected = np.sort(got, axis=None), np.sort(expected, axis=None)
                elif trace == "usage" or trace.endswith("weights"):
                    got, expected = np.sort(got), np.sort(expected)
                np.testing.assert_allclose(got, expected, atol=1e-4, err_msg=f"{trace} at step {time}")
            if time > length:  # the step after the delimiter is the first to answer
                logits = np.concatenate([machine.h, machine.r.ravel()]) @ head["kernel"] + head["bias"]
                logits = np.clip(logits, -model.clip, model.clip)
                np.testing.assert_allclose(outputs[row][time - length - 1], logits, atol=1e-4)
            if model.controller != "feedforward":
                state = cell["controller"]["controller_state"][0][time, row]
                np.testing.assert_allclose(state, machine.controller.raw, atol=1e-4)


@pytest.mark.parametrize("options", [{}, improved], ids=["plain", "improved"])
def test_steps_from_any_state_equal_the_twin(options):
    """No two slots are alike here, so each must be at the twin's place."""
    model = DNC(**small, read_heads=2, **dict(options))
    params = params_of(model)["cell"]
    cell = DNCCell(LSTMController(7), 9, 4, 2, **dict(options))
    generator = np.random.default_rng(5)
    machine = DNCTwin(model, float64({"cell": params}))
    machine.M, machine.r = generator.normal(size=machine.M.shape), generator.normal(size=machine.r.shape)
    machine.M[:4] *= 1e-3  # rows whose lengths are near the constant under the root
    machine.u, machine.prec, machine.ww = (generator.dirichlet(np.ones(9)) for _ in range(3))
    machine.wr, machine.L = generator.dirichlet(np.ones(9), 2), generator.dirichlet(np.ones(9), 9) / 2
    np.fill_diagonal(machine.L, 0)
    access = Access(machine.M, machine.u, machine.L, machine.prec, machine.ww, machine.wr)
    controller = machine.controller.c, machine.controller.h
    state = jax.tree.map(lambda x: x[None].astype(np.float32), DNCState(controller, access, machine.r.ravel()))
    advance = briefly(lambda state, step: cell.apply({"params": params}, state, step))
    for _ in range(5):
        x = generator.normal(size=TASK.spec.vocabulary + 3)
        state, output = advance(state, Step(x[None].astype(np.float32), np.zeros(1, bool), np.ones(1, bool)))
        machine.step(x)
        exact = Access(machine.M, machine.u, machine.L, machine.prec, machine.ww, machine.wr)
        for part, got, expected in zip(Access._fields, state.access, exact, strict=True):
            np.testing.assert_allclose(got[0], expected, atol=1e-4, err_msg=part)
        np.testing.assert_allclose(output[0], np.concatenate([machine.h, machine.r.ravel()]), atol=1e-4)


def test_usage_hands_a_gradient_to_the_write_weights_only_if_asked():
    """The published code stops it there."""
    generator = np.random.default_rng(7)
    memory, (usage, precedence, write) = generator.normal(size=(9, 4)), generator.dirichlet(np.ones(9), 3)
    read, link = generator.dirichlet(np.ones(9), 2), generator.dirichlet(np.ones(9), 9) / 2

    def of_write(stop):
        cell = DNCCell(LSTMController(7), 9, 4, 2, stop_usage_gradient=stop)
        shapes = cell.bind({}).command_shapes
        commands = {name: jnp.full(shape, 0.5) for name, shape in shapes.items()}

        def used(write):
            return cell.advance(Access(memory, usage, link, precedence, write, read), commands)[0].usage.sum()

        return np.asarray(jax.grad(used)(jnp.asarray(write)))

    assert not of_write(True).any()
    np.testing.assert_allclose(of_write(False), (1 - usage) * np.prod(1 - 0.5 * read, axis=0), atol=1e-5)


# What holds for any parameters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, improved], ids=["plain", "improved"])
def test_weights_and_usage_stay_in_range(options):
    """Over 60 steps, far more than slots, with extreme commands and any recurrent cell as controller."""
    cell = DNCCell(GRUCell(6, learned_start=False), slots=5, width=3, read_heads=2, **dict(options))
    inputs = 3 * np.random.default_rng(0).normal(size=(60, 16, 3)).astype(np.float32)
    steps = Step(inputs, np.zeros((60, 16), bool), np.ones((60, 16), bool))
    access = Access(*(np.zeros((16, *shape)) for shape in ((5, 3), (5,), (5, 5), (5,), (5,), (2, 5))))
    start = DNCState(np.zeros((16, 6)), access, np.zeros((16, 6)))
    params = drawn(cell.init, start, jax.tree.map(lambda x: x[0], steps), scale=2.0)

    def run(params):
        running = cell.bind({"params": params}, mutable=["traces"])
        return scan_cell(running, running.start((16,)), steps)[1], running.variables["traces"]

    outputs, traces = briefly(run)(params)
    traces = {name: np.asarray(value[0]) for name, value in traces.items() if name != "controller"}
    assert np.all(np.isfinite(outputs))
    assert traces["usage"].min() >= 0 and traces["usage"].max() <= 1
    for name in ("read_weights", "write_weights"):
        assert traces[name].min() >= -1e-6 and traces[name].sum(-1).max() <= 1 + 1e-5
    assert traces["link"].min() >= -1e-6
    assert max(traces["link"].sum(-1).max(), traces["link"].sum(-2).max()) <= 1 + 1e-5
    assert np.all(np.einsum("...ii->...i", traces["link"]) == 0)


def without_content(params, model):
    """The same machine restricted to allocating and following links, which is independent of empty slots."""
    params = jax.tree.map(np.array, params)
    bias, heads, width = params["cell"]["interface"]["bias"], model.read_heads, model.width
    modes = heads * width + heads + 3 * width + 1 + heads + 2
    bias[modes - 2] = 40  # allocation gate
    bias[modes : modes + 3 * heads].reshape(heads, 3)[:, 1] = -40
    return params


def test_more_slots_need_no_other_parameters_and_leave_what_empty_slots_do_not_touch():
    short, long = DNC(**small, read_heads=2), DNC(**{**small, "slots": 40}, read_heads=2)
    params = params_of(short)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, params_of(long))
    mask = np.asarray(batch_of(TASK).target_mask)
    mask = mask & (np.arange(mask.shape[1]) < 2)  # 9 slots are not used up by the first 9 steps
    batch = batch_of(TASK)

    @briefly
    def run(p):
        given = batch.inputs, batch.input_mask, batch.target_mask
        return [bound(model).apply({"params": p}, *given) for model in (short, long)]

    outputs = [np.asarray(x)[mask] for x in run(params)]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-4  # content lookup spreads over empty slots
    params = without_content(params, short)
    outputs = [np.asarray(x)[mask] for x in run(params)]
    np.testing.assert_allclose(*outputs, atol=2e-5)
    ntms = [jax.tree.map(jnp.shape, params_of(NTM(hidden_size=5, slots=slots))) for slots in (8, 64)]
    assert ntms[0] == ntms[1]


def test_traces():
    model = bound(DNC(**small, read_heads=2, **peephole))
    _, mutated = call(model, params_of(model), mutable=["traces"])
    interface, cell = mutated["traces"]["Transducer_0"], mutated["traces"]["cell"]
    steps = 2 * max(LENGTHS) + 2
    shapes = {name: value[0].shape[2:] for name, value in cell.items() if name != "controller"}
    assert shapes == {
        "read_weights": (2, 9),
        "write_weights": (9,),
        "usage": (9,),
        "link": (9, 9),
        "allocation_gate": (),
        "write_gate": (),
        "read_modes": (2, 3),
    }
    assert cell["controller"]["controller_state"][0].shape == (steps, len(LENGTHS), 7)
    for row, length in enumerate(LENGTHS):
        assert np.sum(interface["valid"][0][:, row]) == 2 * length + 2
        assert np.argmax(interface["decoding"][0][:, row]) == length + 1


# The constraint as a loss ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"controller": "peephole"}, peephole, {}], ids=["peephole", "compressed", "lstm"])
def test_the_loss_of_states_is_that_of_the_real_steps(options):
    fields = {**small, "read_heads": 1, **options}
    model = bound(DNC(**fields, regularization=0.3, nearest_pairs=5))
    params = params_of(model)
    outputs, mutated = call(model, params, train=True, mutable=["losses"])
    (loss,) = jax.tree.leaves(mutated)
    plain, sown = call(bound(DNC(**fields)), params, mutable=["traces", "losses"])
    np.testing.assert_allclose(outputs, plain, atol=1e-6)
    assert "losses" not in sown
    states = np.asarray(sown["traces"]["cell"]["controller"]["controller_state"][0])
    states = np.tanh(states) if options.get("compression") else states  # the compressed state is the recurrent one
    similar = [similarity_twin(states[:, row], 2 * length + 2, 5) for row, length in enumerate(LENGTHS)]
    np.testing.assert_allclose(loss, 0.3 * np.mean(1 - np.array(similar)), atol=1e-5)


def test_the_loss_of_states_has_a_gradient_for_what_makes_states():
    batch = batch_of(TASK)
    model = bound(DNC(**small, read_heads=1, controller="peephole", regularization=1.0, nearest_pairs=4))
    call = (batch.inputs, batch.input_mask, batch.target_mask)

    def loss(params):
        return sum(jax.tree.leaves(model.apply({"params": params}, *call, train=True, mutable=["losses"])[1]))

    gradient = briefly(jax.grad(loss))(params_of(model))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    assert np.abs(gradient["cell"]["controller"]["kernel"]).max() > 1e-4
    assert np.abs(gradient["cell"]["interface"]["kernel"]).max() > 1e-6  # through what was read
    np.testing.assert_array_equal(gradient["head"]["Dense_0"]["kernel"], 0)


# Tasks and errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [DNC(**small, embedding_size=3), NTM(**small)], ids=["dnc_embedded", "ntm"])
def test_aligned_answers_see_no_later_input(model):
    spec, batch = dataclasses.replace(TASK.spec, alignment="aligned", causal=True), batch_of(TASK)
    model = model.clone(spec=spec)
    assert model.supports(spec) is None
    run = briefly(lambda p, inputs: model.apply({"params": p}, inputs, batch.input_mask, batch.input_mask))
    params = drawn(model.init, batch.inputs, batch.input_mask, batch.input_mask, scale=1.5)
    others = np.array(batch.inputs)
    others[:, 3] = (others[:, 3] + 1) % 4
    first, other = (np.asarray(run(params, x)) for x in (batch.inputs, others))
    assert first.shape == (3, 6, spec.output_size)
    np.testing.assert_array_equal(first[:, :3], other[:, :3])
    assert np.abs(first[2, 3:] - other[2, 3:]).max(-1).min() > 1e-4  # the last row is long enough to have seen it


def test_wrong_fields():
    def start(model):
        model = bound(model)
        batch = batch_of(TASK)
        jax.eval_shape(lambda: model.init(jax.random.key(0), batch.inputs, batch.input_mask, batch.target_mask))

    with pytest.raises(ValueError, match="'gru'.*lstm, peephole, feedforward"):
        start(DNC(**small, controller="gru"))  # pyright: ignore[reportArgumentType]
    for constraint in ({"compression": True}, {"regularization": 0.1}):
        with pytest.raises(ValueError, match="constrain a cell state; controller 'feedforward' has none"):
            start(DNC(**small, controller="feedforward", **constraint))
    with pytest.raises(ValueError, match="shifts is 10; allowed are 1 to the number of slots, 9"):
        start(NTM(**small, shifts=10))


def test_the_answer_at_the_last_input_is_the_state_there():
    """Reading stops with the input: a single answer is the cell's last output, from a zero initial state."""
    task = TableLookup()
    model = bound(DNC(**small, embedding_size=3, answer="last_input", learned_start=False, forget_bias=1.0), task)
    params = params_of(model, task=task)
    assert set(params["cell"]["controller"]) == {"kernel", "bias"}
    batch = batch_of(task)
    cell = DNCCell(LSTMController(7, forget_bias=1.0, learned_start=False), slots=9, width=4)
    table = np.asarray(params["Readout_0"]["embedding"]["Embed_0"]["embedding"])
    head = jax.tree.map(np.asarray, params["head"]["Dense_0"])
    start = briefly(lambda length: cell.apply({"params": params["cell"]}, (1,), length, method="start"))
    further = briefly(lambda *arguments: cell.apply({"params": params["cell"]}, *arguments))
    got = np.asarray(call(model, params, task))
    for row, length in enumerate(np.asarray(batch.input_mask).sum(-1).tolist()):
        carry, output = start(length), np.zeros(0)
        for step in table[np.asarray(batch.inputs)[row, :length]]:
            carry, output = further(carry, Step(step[None], np.zeros(1, bool), np.ones(1, bool)))
        np.testing.assert_allclose(got[row], output @ head["kernel"] + head["bias"], atol=1e-5)
    with pytest.raises(ValueError, match="'last_input' is for tasks with one answer; this one has up to 7"):
        jax.eval_shape(bound(model, Copy()).init, jax.random.key(0), jnp.ones((1, 7), int), *jnp.ones((2, 1, 7), bool))


def test_dropout_is_of_the_input_in_training_only():
    model = bound(DNC(**small, embedding_size=8, dropout=0.5))
    params = params_of(model)
    batch = batch_of(TASK)

    def run(train):
        given = batch.inputs, batch.input_mask, batch.target_mask
        return briefly(lambda key: model.apply({"params": params}, *given, train=train, rngs={"dropout": key}))

    training, evaluation = run(True), run(False)
    first, same, other = (np.asarray(training(jax.random.key(seed))) for seed in (0, 0, 1))
    still = [np.asarray(evaluation(jax.random.key(seed))) for seed in (0, 1)]
    np.testing.assert_array_equal(first, same)
    np.testing.assert_array_equal(*still)
    assert not np.allclose(first, other) and not np.allclose(first, still[0])
