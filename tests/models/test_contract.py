"""Every model keeps the contract of `contract.py`. A new model joins with one line of `CASES`."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Set
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lenmem.models import (
    BERT,
    DNC,
    ESBN,
    GRU,
    LANTM,
    LSAM,
    LSTM,
    MODELS,
    NAMTM,
    NDR,
    NRAM,
    NTM,
    PANM,
    RAM,
    SLANTM,
    XLSTM,
    AnswerAutomaton,
    Attention,
    BertSpans,
    DeltaNet,
    Elman,
    LoopedTransformer,
    LSTMAttention,
    LSTMClassifier,
    Mamba2,
    NAMTransformer,
    NeuralStack,
    PointerNetwork,
    Pushdown,
    RAMTape,
    RecurrentLSAM,
    StackRNN,
    TapeRNN,
    Transformer,
    TransformerSeq2Seq,
    TwoWay,
    UniversalTransformer,
    VectorStackRNN,
    panm,
    supports,
)
from lenmem.tasks.dnc import Search
from lenmem.tasks.groups import WordProblem
from lenmem.tasks.lantm import Copy, Reverse
from lenmem.types import Spec
from tests.marks import FLAGSHIPS
from tests.models import contract
from tests.models.columns import Runs
from tests.models.contract import Case, Learning
from tests.models.test_esbn import Naming
from tests.models.test_stack_rnn import Closing
from tests.test_bad_input import small as sizes

short = Copy(vocabulary=4, train_lengths=(1, 5))
"""What a case learns if it names no other task. A constant answer gets 0.29 of the slots."""
many, more = (Copy(vocabulary=64, train_lengths=(2, longest)) for longest in (10, 12))
"""For Lie access: with fewer tokens, or fewer of them, a controller learns to do without relative moves."""
parity = WordProblem(group="Z2", train_lengths=(1, 12))
"""A constant answer gets 0.5 of the slots."""
far_back = Reverse(vocabulary=8, train_lengths=(1, 8))
search = Search(train_lengths=(1, 5))
"""Reads tokens and a channel, and answers in bits."""
counting = WordProblem(group="Z3", train_lengths=(1, 10), test_lengths=(11, 30))
"""Sums modulo 3, at each position."""


def within(accuracy: float, worst: float | None = None, **fields: Any) -> Learning:
    """It learns the trained lengths."""
    return Learning(accuracy, worst, extrapolates=False, **fields)


def beyond(accuracy: float, worst: float | None = None, **fields: Any) -> Learning:
    """It extrapolates."""
    return Learning(accuracy, worst, **fields)


def lie(worst: float | None = None, starts: int = 8, learning_rate: float = 3e-2, updates: int = 600) -> Learning:
    """Lie access extrapolates: the plain LANTM from almost any start, the others from most."""
    return beyond(0.6, worst, updates=updates, learning_rate=learning_rate, b2=0.9, batch_size=32, starts=starts)


half: dict[str, Any] = {"read_gate_bias": 0.0, "forget_bias": 0.0}
small: dict[str, Any] = {"hidden_size": 20, "memory_width": 8, "embedding_size": 8}
state: dict[str, Any] = {"hidden_size": 32, "dropout": 0.0}
flow: dict[str, Any] = {**state, "steps": 3, "heads": 4, "feedforward_size": 64, "key_dropout": 0.0, "gate_drop": 0.0}
machine: dict[str, Any] = {"hidden_size": 32, "slots": 12, "width": 8}
pointers: dict[str, Any] = {"hidden_size": 32, "embedding_size": 8, "mlp_size": 32}
stack: dict[str, Any] = {"hidden_size": 20, "width": 8, "embedding_size": 8}
layer: dict[str, Any] = {**state, "layers": 1, "heads": 4, "feedforward_size": 64}
pairs: dict[str, Any] = {**state, "encoder_layers": 1, "decoder_layers": 1, "heads": 4, "feedforward_size": 64}
recurrence: dict[str, Any] = {"hidden_size": 32, "layers": 1, "heads": 2, "feedforward_size": 64}
steady: dict[str, Any] = {"updates": 600, "learning_rate": 3e-3}
own_pointers: dict[str, Any] = {"pointer_size": 16, "bits": 5, "mlp_size": 16}
looking: dict[str, Any] = {"hidden_size": 16, "embedding_size": 8, "max_positions": 16}

CASES = [
    Case("lantm", LANTM(**half), lie(0.977, starts=1), more),
    Case("lantm_s", LANTM(**half, weighting="softmax"), lie(0.993), more),
    Case(
        "lantm_actions",
        LANTM(**half, write_gate_bias=0.0, action_interpolation=True),
        lie(0.913, learning_rate=2e-2, updates=900),
        more,
    ),
    Case("slantm", SLANTM(read_gate_bias=-3.0), lie(0.829, starts=5, learning_rate=2e-2), many),
    Case("slantm_s", SLANTM(**half, weighting="softmax"), lie(0.657), many),
    Case(
        "slantm_actions",
        SLANTM(**small, action_interpolation=True, bound_action=True),
        within(0.9, 0.956, updates=500, learning_rate=3e-2),
    ),
    Case("ram", RAM(**small, key_size=8), within(0.9, 0.959, updates=700)),
    Case("ram_tape", RAMTape(**small), within(0.9, 0.935, updates=500)),
    Case("ram_tape_sharp", RAMTape(**small, sharpening=True), within(0.9, 0.931, updates=500)),
    Case("lstm", LSTM(hidden_size=32, embedding_size=8), within(0.8, 0.859)),
    Case("gru", GRU(hidden_size=32, embedding_size=8), within(0.75, 0.836)),
    Case("elman", Elman(hidden_size=32), beyond(0.95, 0.998, updates=400, starts=5), counting),
    Case("attention", Attention(hidden_size=16, embedding_size=8), within(0.9, 1.0)),
    Case("location_attention", Attention(**looking, attention="location"), within(0.9, 1.0)),
    Case("hybrid_attention", Attention(**looking, attention="hybrid"), within(0.9, 1.0)),
    Case("pointer_network", PointerNetwork(hidden_size=16, embedding_size=8), within(0.9, 1.0)),
    Case("neural_stack", NeuralStack(**stack), within(0.75, 0.83)),
    Case("stack_rnn", StackRNN(**stack, slots=24), beyond(0.95, 0.999, updates=400), far_back),
    Case(
        "stack_rnn_no_op", StackRNN(**stack, slots=24, no_op=True), beyond(0.95, 0.999, updates=400, starts=5), far_back
    ),
    Case(
        "stack_rnn_vector",
        VectorStackRNN(hidden_size=32, slots=40),
        beyond(0.95, 1.0, updates=800, learning_rate=2e-2, b2=0.9, starts=10),
        Reverse(vocabulary=8, train_lengths=(1, 12)),
    ),
    Case(
        "stack_lstm",
        VectorStackRNN(hidden_size=20, controller="lstm", stacks=2, slots=24),
        beyond(0.95, 0.979, updates=600),
        Closing(),
    ),
    Case(
        "tape_rnn",
        TapeRNN(hidden_size=32, slots=8, mlp_size=32),
        within(0.9, 0.957, updates=800),
        Reverse(vocabulary=4, train_lengths=(1, 5)),
    ),
    Case(
        "nram",
        NRAM(hidden_size=20, registers=4),
        beyond(0.95, 1.0, updates=200, starts=5),
        Copy(vocabulary=8, train_lengths=(1, 6)),
    ),
    Case(
        "two_way",
        TwoWay(),
        beyond(0.9, 1.0, updates=300, learning_rate=5e-3, batch_size=32, starts=4),
        Copy(vocabulary=8, train_lengths=(1, 10)),
    ),
    Case("pushdown", Pushdown(states=1, letters=4), beyond(0.9, 1.0, updates=600, starts=5), Closing()),
    Case("answer_automaton", AnswerAutomaton(), beyond(0.99, 1.0, updates=200, learning_rate=0.1), counting),
    Case("esbn", ESBN(hidden_size=32, key_size=16, embedding_size=16), within(0.9, 0.974), Naming()),
    Case("transformer", Transformer(**layer), within(0.6, 0.698, learning_rate=3e-3)),
    Case(
        "transformer_randomized",
        Transformer(**layer, positions="relative", random_positions=True, max_positions=64),
        within(0.6, 0.753, learning_rate=3e-3),
    ),
    Case(
        "transformer_stick_breaking",
        Transformer(**layer, positions="none", attention="stick_breaking"),
        within(0.6, 0.672, learning_rate=3e-3),
    ),
    Case(
        "transformer_forgetting",
        Transformer(**layer, positions="none", attention="forgetting"),
        within(0.6, 0.666, learning_rate=3e-3, updates=600),
    ),
    Case(
        "looped_transformer",
        LoopedTransformer(**state, heads=4, feedforward_size=64),
        within(0.6, 0.745, learning_rate=3e-3),
    ),
    Case("transformer_seq2seq", TransformerSeq2Seq(**pairs), within(0.8, 0.946, learning_rate=3e-3)),
    Case(
        "transformer_seq2seq_open_loop",
        TransformerSeq2Seq(**pairs, feedback="open_loop"),
        within(0.75, 0.948, updates=400),
    ),
    Case(
        "transformer_seq2seq_relative",
        TransformerSeq2Seq(**pairs, positions="relative", embedding="xavier"),
        within(0.8, 0.906, learning_rate=3e-3),
    ),
    Case(
        "transformer_seq2seq_universal",
        TransformerSeq2Seq(**pairs | {"encoder_layers": 2, "decoder_layers": 2}, shared_layers=True),
        within(0.8, 0.913, learning_rate=3e-3),
    ),
    Case("nam_transformer", NAMTransformer(**layer), within(0.6, 0.7, learning_rate=3e-3)),
    Case("linear_transformer", NAMTransformer(**layer, attention="linear"), within(0.6, 0.677, learning_rate=3e-3)),
    Case(
        "lsam",
        LSAM(**state, heads=4, feedforward_size=64),
        beyond(0.6, 0.686, updates=400, learning_rate=5e-3),
        Copy(vocabulary=8, train_lengths=(1, 6)),
    ),
    Case("lsam_cell", RecurrentLSAM(hidden_size=32, heads=4, embedding_size=8), within(0.75, 0.894)),
    Case(
        "nam_tm",
        NAMTM(**state, tapes=2, input_dropout=0.0),
        beyond(0.95, 0.995, updates=150),
        Copy(vocabulary=8, train_lengths=(1, 6)),
    ),
    Case(
        "universal_transformer",
        UniversalTransformer(**state, steps=2, heads=4, feedforward_size=64, kernel_size=3),
        within(0.6, 0.991, updates=200),
    ),
    Case("bert", BERT(**layer), within(0.55, 0.663, learning_rate=3e-3)),
    Case("lstm_attention", LSTMAttention(**state), within(0.9, 0.999)),
    Case("ndr", NDR(**flow), within(0.6, 0.82, learning_rate=3e-3)),
    Case(
        "act_absolute_relative",
        NDR(**flow, attention="absolute_relative", gated=False, halting="graves"),
        within(0.5, 0.749, learning_rate=3e-3),
    ),
    Case("dnc", DNC(**machine, read_heads=2), within(0.8, 0.888, updates=500)),
    Case(
        "dnc_stateless",
        DNC(**machine, read_heads=2, controller="feedforward"),
        within(0.8, 0.999, updates=900, batch_size=32),
    ),
    Case(
        "dnc_constrained",
        DNC(**machine, read_heads=2, controller="peephole", compression=True, regularization=0.1),
        within(0.8, 0.914, updates=700),
    ),
    Case(
        "dnc_improved",
        DNC(**machine, read_heads=1, masking=True, deallocation=True, link_sharpness=True, plain_lengths=True),
        within(0.8, 0.891, updates=500),
    ),
    Case("ntm", NTM(**machine), within(0.8, 0.882, updates=500)),
    Case("panm", PANM(**pointers), within(0.8, 0.959)),
    Case("panm_paper", PANM(**panm.PAPER, **pointers), within(0.7, 0.987)),
    Case(
        "panm_published",
        PANM(**panm.PUBLISHED | {"hidden_size": 32, "embedding_size": 8, "dropout": 0.0}),
        within(0.8, 0.987),
    ),
    Case(
        "panm_beyond",
        PANM(**panm.BEYOND | pointers | {"bits": 6}),
        beyond(0.95, 1.0, updates=400, b2=0.9),
        Copy(vocabulary=8, train_lengths=(1, 10)),
    ),
    Case(
        "bilstm_classifier",
        LSTMClassifier(hidden_size=32, bidirectional=True, embedding_size=8, dropout=0.0),
        within(0.55, 0.73),
    ),
    Case("bert_span", BertSpans(**layer | {"layers": 2}, max_positions=16), within(0.9, 0.999, **steady), Runs()),
    Case(
        "bert_span_panm",
        BertSpans(**layer, max_positions=16, pointers=True, **own_pointers),
        within(0.9, 0.998),
        Runs(),
    ),
    Case("delta_net", DeltaNet(**recurrence), within(0.6, 0.937)),
    Case(
        "delta_net_negative",
        DeltaNet(**recurrence | {"heads": 4}, negative_eigenvalues=True, kernel_size=0),
        beyond(0.75, 0.808, updates=600, learning_rate=2e-2, starts=6),
        parity,
    ),
    Case("gated_delta_net", DeltaNet(**recurrence, decay=True, gated_output=True), within(0.6, 0.901)),
    Case(
        "delta_product",
        DeltaNet(**recurrence, products=2, kernel_size=0, negative_eigenvalues=True),
        within(0.6, 0.679),
    ),
    Case("mamba2", Mamba2(**recurrence, state_size=16), within(0.6, 0.827)),
    Case("mlstm", XLSTM(**recurrence), within(0.6, 0.932)),
    Case("slstm", XLSTM(**recurrence, cell="slstm", kernel_size=1), beyond(0.9, 0.985), parity),
]


VARIANTS = {
    *("lantm_s", "slantm_s", "lantm_actions", "slantm_actions", "ram_tape_sharp", "stack_rnn_no_op"),
    *("location_attention", "hybrid_attention", "transformer_randomized"),
    *("transformer_seq2seq_open_loop", "transformer_seq2seq_universal", "transformer_seq2seq_relative"),
    *(
        "gated_delta_net",
        "delta_product",
        "linear_transformer",
        "act_absolute_relative",
        "dnc_stateless",
        "dnc_improved",
        "panm_paper",
        "panm_published",
        "bert_span_panm",
    ),
}
"""Further settings of models that are under contract anyway: minutes, for `.ci/run weekly`."""

FREQUENT, RARE = pytest.mark.thorough, pytest.mark.slow
"""What `.ci/run` runs for every change, and what `.ci/run weekly` runs."""
QUICK = {"lantm", "ndr", "transformer", "lstm"}
"""Flagships that also learn and are checked in bfloat16, with programs of their own, in every run of the suite."""


def marks_of(case: Case, always: Set[str]) -> list[pytest.MarkDecorator]:
    """Where a check of this case runs: in every run of the suite if it is one of `always`."""
    if case.name in VARIANTS:
        return [RARE]
    return [] if case.name in always else [FREQUENT]


def checked(case: Case, check: Callable[[Case], None], marks: Iterable[pytest.MarkDecorator]) -> Any:
    """A parameter (case, check)."""
    return pytest.param(case, check, id=f"{case.name}-{check.__name__.removeprefix('check_')}", marks=marks)


def checks_of(case: Case) -> list[Any]:
    """Parameters (case, check)."""
    return [
        checked(case, check, marks_of(case, QUICK if check is contract.check_bfloat16 else FLAGSHIPS))
        for check in contract.CHECKS
    ]


def with_channels() -> list[Any]:
    """Parameters (case, check): rows of floats with answers in bits, for the models that take them.

    The DNC compares with rows of memory that are almost zero, which multiplies rounding errors by up to 1e5: where the
    answers of two programs differ by 3e-5 in float32, they differ by 1e-11 in float64.
    """

    def reading(case: Case) -> Case:
        tolerance = 1e-4 if isinstance(case.model, DNC) else case.tolerance
        return dataclasses.replace(case, task=search, tolerance=tolerance)

    return [
        checked(reading(case), check, [FREQUENT if case.name in FLAGSHIPS else RARE])
        for case in CASES
        if supports(case.model, search.spec) is None
        for check in (contract.check_padding, contract.check_capacity_and_traces, contract.check_batch_order)
    ]


def without_a_case() -> list[str]:
    """The names of `MODELS` whose class or settings no case has, apart from sizes."""

    def under_contract(kind: type, preset: dict[str, Any]) -> bool:
        alike = [case.model for case in CASES if type(case.model) is kind]
        settings = {field: value for field, value in preset.items() if type(value) is not int}
        return any(all(getattr(model, field) == value for field, value in settings.items()) for model in alike)

    return [name for name, (kind, preset) in MODELS.items() if not under_contract(kind, preset)]


@functools.cache
def named(name: str) -> Case:
    """A case for a name without one: its settings at a small size, which learns nothing."""
    kind, preset = MODELS[name]
    model = kind(**sizes(kind, preset))
    task = next(task for task in (short, counting, Runs()) if supports(model, task.spec) is None)
    return Case(name, model, Learning(0.0), task)


@pytest.fixture(scope="module", autouse=True)
def programs_are_not_kept():
    """CI starts without a cache, no other test runs these programs, and to write them takes a tenth of the time."""
    name, never = "jax_persistent_cache_min_compile_time_secs", 1e9
    before = getattr(jax.config, name)
    jax.config.update(name, never if os.environ.get("CI") else before)
    yield
    jax.config.update(name, before)


@pytest.mark.parametrize(("case", "check"), [one for case in CASES for one in checks_of(case)])
def test_contract(case, check):
    check(case)


@pytest.mark.parametrize(("case", "check"), with_channels())
def test_contract_with_channels(case, check):
    """Padding of floats is NaN, which a mask that multiplies lets through."""
    check(case)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "check",
    [contract.check_shapes, contract.check_padding, contract.check_capacity_and_traces, contract.check_batch_order],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
@pytest.mark.parametrize("name", without_a_case())
def test_contract_of_names_without_a_case(name, check):
    check(named(name))


@pytest.mark.learning
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=marks_of(case, QUICK)) for case in CASES],
    ids=lambda case: case.name,
)
def test_it_learns(case, learns):
    contract.check_learns(case, learns)


def test_every_named_model_is_under_contract():
    assert {case.name for case in CASES} >= VARIANTS | FLAGSHIPS | QUICK
    assert {type(case.model) for case in CASES if case.name not in VARIANTS} >= {kind for kind, _ in MODELS.values()}


class Aligner(nn.Module):
    """Answer j from input j and the sum of all inputs: an honest model of a few lines, or one with a flaw."""

    flaw: str = ""
    spec: Spec | None = None
    dtype: Any = None

    @nn.nowrap
    def supports(self, spec):
        return "two\nlines" if self.flaw == "supports" and spec.causal else None

    @nn.compact
    def __call__(self, inputs, input_mask, target_mask, *, targets=None, train=False):
        assert self.spec is not None
        if self.flaw != "padding":
            inputs = jnp.where(input_mask, inputs, 0)
        states = nn.Embed(self.spec.vocabulary, 16, dtype=self.dtype)(jnp.clip(inputs, 0, self.spec.vocabulary - 1))
        if self.flaw != "padding":
            states = jnp.where(input_mask[..., None], states, 0)
        bag = states.mean(1) if self.flaw == "capacity" else states.sum(1)
        if self.flaw == "batch":
            bag = bag - bag.mean(0)
        if self.flaw == "rows":
            bag = bag + jnp.arange(bag.shape[0])[:, None].astype(bag.dtype)
        if self.flaw == "jit" and not isinstance(inputs, jax.core.Tracer):
            bag = bag + 1
        if self.flaw == "gradient":
            bag = bag + jnp.linalg.norm(0 * bag, axis=-1, keepdims=True)
        if self.flaw == "bfloat16" and bag.dtype == jnp.bfloat16:
            bag = bag * jnp.inf
        if self.flaw == "teacher" and targets is not None:
            bag = bag + targets.sum(-1, keepdims=True).astype(bag.dtype)
        if self.flaw == "traces":
            self.sow("traces", "token", inputs)
            self.sow("traces", "valid", input_mask.T)
        if self.flaw == "cut":
            self.sow("traces", "token", inputs.T[:3])
            self.sow("traces", "valid", input_mask.T[:3])
        if self.flaw == "summed":
            self.sow("traces", "states", states.sum(0))
        answers = jnp.pad(states, [(0, 0), (0, target_mask.shape[1] - inputs.shape[1]), (0, 0)])
        ended = jnp.pad(input_mask, [(0, 0), (0, target_mask.shape[1] - inputs.shape[1])])[..., None]
        bag = jnp.broadcast_to(bag[:, None], answers.shape)
        answers = jnp.concatenate([answers, 0.1 * bag, ended.astype(answers.dtype)], -1)
        if self.flaw == "deaf":
            answers = jnp.zeros_like(answers)
        if self.flaw == "key":
            self.param("noise", lambda _: jnp.asarray(np.random.default_rng().normal(), jnp.float32))
        return nn.Dense(self.spec.output_size + (self.flaw == "shape"), dtype=self.dtype)(answers)


def control(flaw: str) -> Case:
    """The little model under contract."""
    return Case(flaw or "honest", Aligner(flaw), Learning(0.9, 1.0, extrapolates=False, updates=400))


@pytest.mark.parametrize("check", contract.CHECKS)
def test_an_honest_model_passes(check):
    check(control(""))


@pytest.mark.learning
def test_an_honest_model_learns(learns):
    contract.check_learns(control(""), learns)


@pytest.mark.parametrize(
    ("flaw", "check"),
    [
        ("supports", contract.check_supports),
        ("shape", contract.check_shapes),
        ("padding", contract.check_padding),
        ("teacher", contract.check_padding),
        ("capacity", contract.check_capacity_and_traces),
        ("batch", contract.check_batch_order),
        ("rows", contract.check_batch_order),
        ("jit", contract.check_capacity_and_traces),
        ("traces", contract.check_capacity_and_traces),
        ("cut", contract.check_capacity_and_traces),
        ("summed", contract.check_capacity_and_traces),
        ("key", contract.check_determinism),
        ("gradient", contract.check_finite),
        ("bfloat16", contract.check_bfloat16),
    ],
)
def test_a_flawed_model_fails(flaw, check):
    with pytest.raises(AssertionError):
        check(control(flaw))


def test_a_deaf_model_does_not_learn():
    case = control("deaf")
    assert contract.learned(case)(jax.random.key(0)) < case.learning.accuracy
