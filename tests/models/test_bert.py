"""BERT and BERT with PANM: the loader of Hugging Face's format, the network against float64 twins, a whole training."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from scipy.special import erf

from lenmem import Experiment, models
from lenmem.models import hugging_face
from lenmem.models.bert import IMPOSSIBLE, Bert, BertSpans
from lenmem.nn.panm import PointerDecoder
from lenmem.training import Optimizer, Training
from lenmem.training.lanes import initial_lanes
from lenmem.training.step import initial_state, replaced_in
from lenmem.types import Spec
from tests.models.columns import Runs
from tests.nn import test_pointers

CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "vocab_size": 30,
    "hidden_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
SEPARATOR, COLUMNS = 9, 12
SPEC = Spec(vocabulary=30, output_size=COLUMNS, answers_are_columns=True, separator=SEPARATOR)
TASK = Runs(vocabulary=30, longest=COLUMNS, separator=SEPARATOR)
IDS = np.array([[1, 5, 9, 6, 7, 8, 9, 0, 3], [1, 9, 20, 29, 9, 9, 9, 9, 9], [1, 2, 3, 4, 9, 5, 6, 7, 9]])
LENGTHS = np.array([7, 5, 9])
MASK = np.arange(9) < LENGTHS[:, None]
ENDS = np.ones((3, 2), bool)


def tensors_of(config, seed=0, prefix="bert.", old=False):
    """Random tensors with the names and shapes of Hugging Face's BertForPreTraining."""
    rng = np.random.default_rng(seed)
    wide, hidden = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], wide),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], wide),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], wide),
        "embeddings.LayerNorm.weight": (wide,),
        "embeddings.LayerNorm.bias": (wide,),
        "pooler.dense.weight": (wide, wide),
        "pooler.dense.bias": (wide,),
    }
    for layer in range(config["num_hidden_layers"]):
        linear = {f"attention.self.{name}": (wide, wide) for name in ("query", "key", "value")}
        linear |= {"attention.output.dense": (wide, wide), "intermediate.dense": (hidden, wide)}
        linear |= {"output.dense": (wide, hidden)}
        for name, shape in linear.items():
            shapes |= {f"encoder.layer.{layer}.{name}.weight": shape, f"encoder.layer.{layer}.{name}.bias": shape[:1]}
        for name in ("attention.output", "output"):
            norm = f"encoder.layer.{layer}.{name}.LayerNorm"
            shapes |= {f"{norm}.weight": (wide,), f"{norm}.bias": (wide,)}
    tensors = {}
    for name, shape in shapes.items():
        tensor = rng.normal(scale=0.5, size=shape) + (name.endswith("LayerNorm.weight"))
        if old:
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        tensors[prefix + name] = tensor.astype(np.float32)
    return tensors | ({"cls.predictions.bias": np.zeros(config["vocab_size"], np.float32)} if prefix else {})


def write(directory: Path, config=CONFIG, tensors=None, **options) -> Path:
    """A directory in Hugging Face's format."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = tensors_of(config, **options) if tensors is None else tensors
    safetensors.numpy.save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def twin(tensors, ids, segments, heads, epsilon=1e-12):
    """BERT by Hugging Face's names, one row at a time, in float64: the states of all columns, [N, d]."""
    t = {name.removeprefix("bert."): value.astype(np.float64) for name, value in tensors.items()}

    def linear(name, x):
        return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        gain, shift = (t.get(f"{name}.LayerNorm.{new}", t.get(f"{name}.LayerNorm.{old}")) for new, old in NAMES)
        return scaled * gain + shift

    words, places, kinds = (t[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type"))
    x = norm("embeddings", words[ids] + places[np.arange(len(ids))] + kinds[segments])
    layer = 0
    while f"encoder.layer.{layer}.output.dense.bias" in t:
        at = f"encoder.layer.{layer}"
        q, k, v = (linear(f"{at}.attention.self.{name}", x) for name in ("query", "key", "value"))
        size, mixed = x.shape[1] // heads, np.zeros_like(x)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            for i in range(len(ids)):
                weights = np.exp(k[:, part] @ q[i, part] / np.sqrt(size))
                mixed[i, part] = weights @ v[:, part] / weights.sum()
        x = norm(f"{at}.attention.output", x + linear(f"{at}.attention.output.dense", mixed))
        hidden = linear(f"{at}.intermediate.dense", x)
        hidden = hidden * 0.5 * (1 + erf(hidden / np.sqrt(2)))
        x = norm(f"{at}.output", x + linear(f"{at}.output.dense", hidden))
        layer += 1
    return x


NAMES = (("weight", "gamma"), ("bias", "beta"))


def body(config=CONFIG, **fields):
    sizes = {ours: config[theirs] for ours, theirs in hugging_face.FIELDS.items()}
    return Bert(config["vocab_size"], **sizes, **fields)


def rows_of(ids, lengths):
    """(ids, segments) of each row: the second segment begins after the first separator."""
    for row, length in zip(ids, lengths, strict=True):
        row = row[:length]
        first = row.tolist().index(SEPARATOR)
        yield row, (np.arange(length) > first).astype(int)


@pytest.mark.parametrize("prefix, old", [("bert.", False), ("", False), ("bert.", True)])
def test_states_are_those_of_the_twin(tmp_path, prefix, old):
    """Whatever the names begin with, and with the names of norms in older files; padding holds other ids."""
    tensors = tensors_of(CONFIG, prefix=prefix, old=old)
    directory = write(tmp_path / "bert", tensors=tensors)
    params = hugging_face.read(directory, body())
    shapes = jax.eval_shape(body().init, jax.random.key(0), IDS, MASK, IDS * 0)["params"]
    assert jax.tree.map(np.shape, params) == jax.tree.map(lambda x: x.shape, shapes)
    segments = (np.cumsum(IDS == SEPARATOR, axis=1) - (IDS == SEPARATOR) > 0).astype(int)
    states = np.asarray(jax.jit(body().apply)({"params": params}, IDS, MASK, segments))
    for row, (ids, kinds), length in zip(states, rows_of(IDS, LENGTHS), LENGTHS, strict=True):
        np.testing.assert_allclose(row[:length], twin(tensors, ids, kinds, heads=2), atol=2e-5)
        assert not row[length:].any()


def bound(directory=None, **fields):
    """A model of the size of `CONFIG`."""
    sizes = {ours: CONFIG[theirs] for ours, theirs in hugging_face.FIELDS.items()} | fields
    return BertSpans(**sizes, weights=None if directory is None else str(directory), spec=SPEC)


def random_params(model, seed=1):
    """Parameters larger than at the start, with those of the directory."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), IDS, MASK, ENDS)["params"]
    rng = np.random.default_rng(seed)
    drawn = jax.tree.map(lambda x: jax.device_put(rng.normal(scale=0.4, size=x.shape).astype(np.float32)), shapes)
    return replaced_in(drawn, model.pretrained())


@pytest.mark.parametrize("pointers", [False, True])
def test_logits_are_those_of_the_twin(tmp_path, pointers):
    """l_t[n] = w_t . M[n] + b_t, and with PANM + g_o(...) . M[n] / sqrt(d), from its own twin (equations 1 to 7)."""
    tensors = tensors_of(CONFIG)
    fields = {"pointers": pointers, "pointer_size": test_pointers.H, "bits": 4, "mlp_size": 5}
    model = bound(write(tmp_path / "bert", tensors=tensors), **fields)
    params = random_params(model)
    logits = np.asarray(jax.jit(model.apply)({"params": params}, IDS, MASK, ENDS))
    assert logits.shape == (3, 2, COLUMNS) and logits.dtype == np.float32
    double = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for row, (ids, kinds), length in zip(logits, rows_of(IDS, LENGTHS), LENGTHS, strict=True):
        memory = twin(tensors, ids, kinds, heads=2)
        ends = double["span"]["ends"]
        wanted = (memory @ ends["kernel"] + ends["bias"]).T
        if pointers:
            decoder = PointerDecoder(hidden_size=test_pointers.H, bits=4, mlp_size=5, reads=False)
            steps, _ = test_pointers.twin(decoder, double["pointers"], list(memory), [None, None])
            wanted += (
                np.array([test_pointers.mlp(double["span"]["query"], step) for step in steps]) @ memory.T / 10**0.5
            )
        np.testing.assert_allclose(row[:, :length], wanted, atol=5e-5)
        assert np.all(row[:, length:] == IMPOSSIBLE)


def test_a_training_starts_from_the_weights_and_no_seed_from_others(tmp_path):
    """Both seeds have the same BERT and heads of their own; without weights, the same keys give the same heads."""
    directory = write(tmp_path / "bert")
    model = bound(directory)
    keys = jax.random.split(jax.random.key(3), 2)
    states = [
        initial_state(one, TASK, Optimizer().build(1), keys, keep_best=True).members
        for one in (model, model.clone(weights=None))
    ]
    given = model.pretrained()["bert"]
    for params in (states[0].params, states[0].best):
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, np.stack([y, y])), params["bert"], given)
    jax.tree.map(np.testing.assert_array_equal, states[0].params["span"], states[1].params["span"])
    kernel = states[0].params["span"]["ends"]["kernel"]
    assert np.any(kernel[0] != kernel[1])
    with pytest.raises(ValueError, match="the model has no parameter bert/nothing; it has"):
        replaced_in(states[0].params, {"bert": {"nothing": 1.0}})
    with pytest.raises(ValueError, match=r"the given parameter bert/pieces/embedding has shape \(3,\)"):
        replaced_in(states[0].params, {"bert": {"pieces": {"embedding": np.zeros(3)}}})


def test_a_sweep_starts_from_the_weights_too(tmp_path):
    model = bound(write(tmp_path / "bert"))
    experiment = Experiment(TASK, model, Training(steps=1, seeds=2))
    keys = jax.random.split(jax.random.key(3), 2)
    state = initial_lanes(experiment, {"training.optimizer.learning_rate": [1e-3, 1e-4]}, keys)
    given = model.pretrained()["bert"]
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, np.stack([y] * 4)), state.members.params["bert"], given)


CHANGED = {
    "missing": (
        lambda t: t.pop("bert.encoder.layer.1.output.dense.bias"),
        r"has no tensor bert\.encoder\.layer\.1\.output",
    ),
    "shape": (
        lambda t: t.update({"bert.encoder.layer.0.intermediate.dense.weight": np.zeros((10, 12), np.float32)}),
        r"tensor bert\.encoder\.layer\.0\.intermediate\.dense\.weight has shape \[10, 12\]; the model needs \[12, 10\]",
    ),
    "kind": (
        lambda t: t.update({"bert.embeddings.LayerNorm.bias": np.zeros(10, np.int32)}),
        r"tensor bert\.embeddings\.LayerNorm\.bias has numbers of type int32; expected float32",
    ),
    "values": (
        lambda t: t.update({"bert.embeddings.LayerNorm.bias": np.full(10, np.nan, np.float32)}),
        r"tensor bert\.embeddings\.LayerNorm\.bias has numbers that are not finite",
    ),
    "rows": (
        lambda t: t.update({"bert.embeddings.word_embeddings.weight": np.zeros((31, 10), np.float32)}),
        r"word_embeddings\.weight has shape \[31, 10\]; the model needs \[30, 10\]",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_wrong_tensor_is_one_line_with_its_name(tmp_path, name):
    change, message = CHANGED[name]
    tensors = tensors_of(CONFIG)
    change(tensors)
    with pytest.raises(ValueError, match=message) as error:
        bound(write(tmp_path / "bert", tensors=tensors)).pretrained()
    assert "\n" not in str(error.value) and "model.safetensors" in str(error.value)


@pytest.mark.parametrize(
    "file, change, message",
    [
        ("config.json", None, r"config\.json cannot be read \(No such file.*a directory with config\.json and model"),
        ("config.json", "{", r"config\.json, line 1: it is not JSON"),
        ("config.json", "[]", r"config\.json: got \[\]; expected an object"),
        ("config.json", {"hidden_size": 9}, r"config\.json has hidden_size 9, but the model has hidden_size 10"),
        ("config.json", {"num_hidden_layers": 3}, r"num_hidden_layers 3, but the model has layers 2"),
        ("config.json", {"model_type": "gpt2"}, r"model_type 'gpt2'; lenmem supports only 'bert'"),
        ("config.json", {"hidden_act": "relu"}, r"hidden_act 'relu'; lenmem supports only 'gelu'"),
        ("config.json", {"hidden_size": ...}, r"config\.json: there is no 'hidden_size'; it has hidden_act"),
        ("model.safetensors", None, r"model\.safetensors cannot be read"),
        ("model.safetensors", "cut", r"model\.safetensors is not a complete safetensors file"),
        ("model.safetensors", "nonsense", r"model\.safetensors is not a complete safetensors file"),
    ],
)
def test_a_missing_or_damaged_file_is_one_line(tmp_path, file, change, message):
    path = write(tmp_path / "bert") / file
    if change is None:
        path.unlink()
    elif isinstance(change, dict):
        path.write_text(json.dumps({k: v for k, v in (CONFIG | change).items() if v is not ...}))
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.write_text(change)
    with pytest.raises(ValueError, match=message) as error:
        bound(tmp_path / "bert").pretrained()
    assert "\n" not in str(error.value)


def test_half_precision_files_are_read(tmp_path):
    tensors = {name: value.astype(np.float16) for name, value in tensors_of(CONFIG).items()}
    params = hugging_face.read(write(tmp_path / "bert", tensors=tensors), body())
    wanted = tensors["bert.embeddings.word_embeddings.weight"].astype(np.float32)
    assert params["pieces"]["embedding"].dtype == np.float32
    np.testing.assert_array_equal(params["pieces"]["embedding"], wanted)


def test_the_published_sizes():
    """BERT-base without its pooler, and with PANM, which the paper calls around 114 million parameters for both."""
    counts = []
    for name in ("bert_span", "bert_span_panm"):
        model = models.make(name, Spec(30_522, 384, answers_are_columns=True, separator=102))
        rows = jnp.zeros((1, 384), jnp.int32), jnp.ones((1, 384), bool), jnp.ones((1, 2), bool)
        shapes = jax.eval_shape(model.init, jax.random.key(0), *rows)["params"]
        counts.append(sum(x.size for x in jax.tree.leaves(shapes)))
    layer = 4 * (768**2 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert counts[0] == (30_522 + 512 + 2 + 2) * 768 + 12 * layer + 2 * 768 + 2
    three_gates, hidden = 3 * 256, 128
    unit, recurrence = ((size + 256 + 2) * three_gates for size in (10, 3 * 768))
    maps = {10: 256, 2 * 768: 768, 3 * 768 + 256: 768}  # g_a, g_c, g_o
    g_a, g_c, g_o = ((size + 1) * hidden + (hidden + 1) * out for size, out in maps.items())
    bridge, temperatures = (768 + 1) * 256, 3
    assert counts[1] - counts[0] == 2 * (unit + g_a) + g_c + recurrence + g_o + bridge + temperatures == 3_367_683


def test_what_it_cannot_take():
    with pytest.raises(ValueError, match="'bert_span' cannot take the task: it answers with a piece of its input"):
        models.make("bert_span", Spec(vocabulary=4, output_size=4))
    wide = jnp.zeros((1, 13), jnp.int32), jnp.ones((1, 13), bool), jnp.ones((1, 2), bool)
    with pytest.raises(ValueError, match="the rows have 13 columns, but answers only 12"):
        jax.eval_shape(bound().init, jax.random.key(0), *wide)
    longer = bound(max_positions=8)
    with pytest.raises(ValueError, match="max_positions is 8; the padded rows have 9 positions"):
        jax.eval_shape(longer.init, jax.random.key(0), IDS, MASK, ENDS)
    with pytest.raises(ValueError, match="bits is 3: its 8 addresses must outnumber the 9 slots"):
        jax.eval_shape(bound(pointers=True, bits=3).init, jax.random.key(0), IDS, MASK, ENDS)
