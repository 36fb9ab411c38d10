"""Independent twins of the memory machines of Yang & Rush (2017): NumPy float64, Python lists, one row at a time.

Written from the paper's equations and the fact sheet on its published code, without lenmem's operations. A memory is a
list of (key, value, strength); a row is read from its first symbol to its last answer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lenmem.tasks.base import draw
from tests.drawing import drawn


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def normalised(x):
    return x / np.sqrt(np.sum(x**2) + 1e-10)


def rotated(q, axis, angle):
    """Rodrigues' formula."""
    turned = q * np.cos(angle) + np.cross(axis, q) * np.sin(angle)
    return turned + axis * np.dot(axis, q) * (1 - np.cos(angle))


def lstm_step(params, x, c, h):
    """Gates f, i, o, g from one linear map of [x; h]."""
    f, i, o, g = np.split(np.concatenate([x, h]) @ params["kernel"] + params["bias"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def read_weights(closeness, strengths):
    """(s_i u_i + 1e-9) / (sum + 1e-10) with u normalised first."""
    closeness = np.array(closeness) / np.sum(closeness)
    raised = closeness * np.array(strengths) + 1e-9
    return raised / (raised.sum() + 1e-10)


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


class Commands:
    """The controller's one linear map, split into commands in order."""

    def __init__(self, params, h):
        self.rest = h @ params["kernel"] + params["bias"]

    def take(self, size):
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def take_one(self):
        return self.take(1)[0]


class LieTwin:
    """LANTM and SLANTM."""

    def __init__(self, model, params):
        self.model, self.p = model, params["cell"]
        self.sphere = model.group == "rotation"
        p = self.p
        self.c, self.h = p["controller"]["start_memory"], p["controller"]["start_hidden"]
        self.rho = np.tanh(p["start_read_value"])
        self.memory = [(p["start_key"], np.tanh(p["start_value"]), sigmoid(p["start_strength"][0] - 10))]
        self.heads = [self.pi(p["start_read_head"]), self.pi(p["start_write_head"])]
        self.bounds = [1.0, 1.0]
        if self.sphere and model.bound_action:
            self.bounds = [np.pi * sigmoid(p[f"{name}_angle_bound"][0] - 5) for name in ("read", "write")]
        self.actions: list[Any] = [None, None]
        if model.action_interpolation:
            self.actions = [self.action(p[f"start_{name}_action"], i) for i, name in enumerate(("read", "write"))]

    def pi(self, q):
        return normalised(q) if self.sphere else q

    def action(self, raw, which):
        """A shift, or (axis, angle)."""
        if self.sphere:
            return normalised(raw[:3]), np.tanh(raw[3]) * self.bounds[which]
        return raw / np.sqrt(1 + np.sum(raw**2)) if self.model.bound_action else raw

    def interpolated(self, r, new, last):
        """Appendix B."""
        if not self.sphere:
            return r * new + (1 - r) * last
        axis = normalised(r * new[0] + (1 - r) * last[0])
        if self.model.rotation_interpolation == "angle":
            return axis, r * new[1] + (1 - r) * last[1]
        mean = [r * f(new[1]) + (1 - r) * f(last[1]) for f in (np.cos, np.sin)]
        cosine, sine = np.array(mean) / np.hypot(*mean)
        return axis, np.arccos(np.clip(cosine, -1, 1)) * (1 if sine >= 0 else -1)

    def move(self, which, commands):
        """q' = a . pi(t q + (1 - t) q~), gates of the published code: 1 - t = sigmoid(. + constant)."""
        constant = (self.model.read_gate_bias, self.model.write_gate_bias)[which]
        proposal = self.pi(commands.take(3 if self.sphere else 2))
        raw = commands.take(4 if self.sphere else 2)
        t = 1 - sigmoid(commands.take_one() + constant)
        r = sigmoid(commands.take_one() + constant)
        base = self.pi(t * self.heads[which] + (1 - t) * proposal)
        action = self.action(raw, which)
        if self.model.action_interpolation:
            action = self.interpolated(r, action, self.actions[which])
        self.actions[which] = action
        self.heads[which] = rotated(base, *action) if self.sphere else base + action

    def step(self, x, decoding):
        """One step."""
        self.c, self.h = lstm_step(self.p["controller"], np.concatenate([x, self.rho]), self.c, self.h)
        commands = Commands(self.p["commands"], self.h)
        value, strength = np.tanh(commands.take(self.model.memory_width)), sigmoid(commands.take_one())
        self.gamma, temperature = sigmoid(commands.take_one()), softplus(commands.take_one())
        self.move(0, commands)
        self.move(1, commands)
        squares = [np.sum((self.heads[0] - key) ** 2) for key, _, _ in self.memory]
        if self.model.weighting == "softmax":
            closeness = softmax(-np.array(squares) / temperature)
        else:
            closeness = [1 / (square + 1e-10) for square in squares]
        self.weights = read_weights(closeness, [s for _, _, s in self.memory])
        self.rho = sum(w * v for w, (_, v, _) in zip(self.weights, self.memory, strict=True))
        self.entry = (self.heads[1], value, strength)
        if not decoding:
            self.memory.append(self.entry)

    def logits(self, head):
        own = self.h @ head["hidden"]["kernel"] + head["hidden"]["bias"]
        return own + self.gamma * (self.rho @ head["read"]["kernel"] + head["read"]["bias"])


class RandomAccessTwin:
    """RAM and RAM/tape."""

    def __init__(self, model, params, tape):
        self.model, self.p, self.tape = model, params["cell"], tape
        p = self.p
        self.c, self.h = p["controller"]["start_memory"], p["controller"]["start_hidden"]
        self.rho = np.tanh(p["start_read_value"])
        self.memory = [
            (p["start_keys"][:, i], np.tanh(p["start_values"][:, i]), sigmoid(p["start_strengths"][i] - 10))
            for i in range(2 if tape else 1)
        ]
        if tape:
            self.left, self.right = p["start_left_key"], p["start_right_key"]

    def step(self, x, decoding):
        """One step."""
        model = self.model
        self.c, self.h = lstm_step(self.p["controller"], np.concatenate([x, self.rho]), self.c, self.h)
        commands = Commands(self.p["commands"], self.h)
        value, strength = np.tanh(commands.take(model.memory_width)), sigmoid(commands.take_one())
        q, write_key = commands.take(model.key_size), commands.take(model.key_size)
        gamma, order = 1.0, None
        if self.tape:
            a, b, c = softmax(commands.take(3))
            q = a * q + b * self.left + c * self.right
            if model.sharpening:
                gamma, order = 1 + softplus(commands.take_one()), model.sharpening_order
        products = np.array([np.dot(q, key) for key, _, _ in self.memory])
        closeness = softmax(products * (gamma if order == "before_strengths" else 1))
        weights = read_weights(closeness, [s for _, _, s in self.memory])
        if order == "after_strengths":
            weights = weights**gamma / np.sum(weights**gamma)
        self.weights = weights
        self.rho = sum(w * v for w, (_, v, _) in zip(weights, self.memory, strict=True))
        if self.tape:
            keys, last = [key for key, _, _ in self.memory], len(self.memory) - 1
            self.left = sum(weights[i] * keys[i - 1] for i in range(1, last + 1))
            self.right = sum(weights[i] * keys[i + 1] for i in range(last))
        self.heads = [q, write_key]
        self.entry = (write_key, value, strength)
        if not decoding:
            self.memory.append(self.entry)

    def logits(self, head):
        own = self.h @ head["hidden"]["kernel"] + head["hidden"]["bias"]
        return own + self.rho @ head["read"]["kernel"] + head["read"]["bias"]


def run(machine, params, embedding, tokens, vocabulary, answers):
    """Reads `^ tokens #`, answers from the step that reads `#`, then reads `#` again: (logits [answers, K], trace)."""
    begin, delimiter = vocabulary, vocabulary + 1
    symbols = [begin, *tokens, delimiter, *[delimiter] * (answers - 1)]
    first_answer = len(tokens) + 1
    logits, trace = [], []
    for time, symbol in enumerate(symbols):
        machine.step(embedding[symbol], decoding=time >= first_answer)
        if time >= first_answer:
            logits.append(machine.logits(params["head"]))
        trace.append(
            {
                "read_head": machine.heads[0],
                "write_head": machine.heads[1],
                "write_strength": machine.entry[2],
                "read_weights": machine.weights,
            }
        )
    return np.array(logits), trace


def random_parameters(model, batch, scale):
    """U(-scale, scale) instead of the model's initialisation: fast, and outside of the nearly linear range."""
    call = (batch.inputs, batch.input_mask, batch.target_mask)
    return drawn(model.init, *call, scale=scale)


def check(make_twin, model, task, *, tolerance=1e-4):
    """Compares logits and traces of a ragged batch with the twin's, row by row."""
    model = model.clone(spec=task.spec)
    lengths = [4, 1, 6]
    batch = jax.jit(lambda key: draw(task, key, jnp.asarray(lengths), 6))(jax.random.key(3))
    call = (batch.inputs, batch.input_mask, batch.target_mask)
    params = random_parameters(model, batch, scale=0.7)
    outputs, mutated = jax.jit(lambda params: model.apply({"params": params}, *call, mutable=["traces"]))(params)
    traces = {name: np.asarray(leaf[0]) for name, leaf in mutated["traces"]["cell"].items()}
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    embedding = next(leaf for leaf in jax.tree.leaves(params["Transducer_0"]["embedding"]))
    for row, length in enumerate(lengths):
        tokens = np.asarray(batch.inputs[row][:length])
        twin = make_twin(model, params)
        logits, trace = run(twin, params, embedding, tokens, task.spec.vocabulary, length + 1)
        np.testing.assert_allclose(np.asarray(outputs)[row, : length + 1], logits, atol=tolerance)
        for time, expected in enumerate(trace):
            for name, value in expected.items():
                got = traces[name][time, row]
                if name == "read_weights":
                    assert np.all(got[len(value) :] == 0)  # slots that hold nothing yet
                    got = got[: len(value)]
                np.testing.assert_allclose(got, value, atol=tolerance, err_msg=f"{name} at step {time}")
