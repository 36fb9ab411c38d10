"""Training speeds of lenmem beside those of published code, on one thread of this machine.

    git clone https://github.com/thaihungle/PANM peers/PANM
    git clone https://github.com/google-deepmind/neural_networks_chomsky_hierarchy \
        peers/neural_networks_chomsky_hierarchy
    pip install torch dm-haiku einshape dm-tree tqdm
    python scripts/compare_peers.py --peers peers --json results/peers.json
    python scripts/compare_peers.py --page    # write the tables of that file to docs/speed.md

`panm`: the models of Le et al.'s PyTorch code on its copy task, in the sizes of its configuration: batches of 128, one
length per batch, 1 to 10, RMSProp. `chomsky`: the models of Delétang et al.'s Haiku code on reverse_string in batches
of 128, one length per batch, 1 to 40, Adam; it compiles a program for each length, and lenmem one for all.

Both codes draw a batch, take the gradient and update the parameters, alternating with lenmem (A B A B) in one process.
A figure is the median of the processor time of a step, so other programs on the machine disturb it little. The start is
the processor time until the first steps of each of these lengths are done, compilation included.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmark import as_table, in_turns
from rich.console import Console

from lenmem import configs, models, tasks
from lenmem.experiment import Experiment
from lenmem.files import read_json, write_json, write_whole
from lenmem.training import Optimizer, Training
from lenmem.training.environment import describe_environment
from lenmem.training.step import initial_state, make_advance

ROOT, PAGE, RECORD = Path(__file__).parents[1], "docs/speed.md", "results/peers.json"
STEPS = 10
"""Steps of a timed call; the published code takes this many lengths, evenly spaced."""

WIDTHS = {"transformer": 4, "transformer_xl": 4}
"""`Training.widths` of networks that compute padding, too."""

Call = Callable[[], None]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="the directory of the clones")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=[*TABLES])
    parser.add_argument("--models", nargs="+", help="only these models")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="save the figures")
    parser.add_argument("--page", action="store_true", help=f"only write {PAGE} from {RECORD}")
    asked = parser.parse_args()
    os.environ["XLA_FLAGS"] = (
        "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # read by JAX at first
    )
    if asked.page:
        write_whole(ROOT / PAGE, page((ROOT / PAGE).read_text(), read_json(ROOT / RECORD)).encode())
        return
    tables = {}
    for name in asked.tables:
        rows = tables[name] = []
        for model, theirs, ours in TABLES[name](asked.peers):
            if asked.models is None or model in asked.models:
                rows.append(compared(model, theirs, ours, asked.repeats))
                Console().print(as_table(name, rows))
    if asked.json is not None:
        write_json(asked.json, {"environment": describe_environment(), "tables": tables})


def compared(model: str, theirs: Callable[[], Call], ours: Experiment, repeats: int) -> dict[str, Any]:
    """Milliseconds of a step of both codes, and seconds until all their programs are compiled."""
    calls, compiled = [], []
    for prepare in (theirs, lambda: our_steps(ours)):
        started = time.process_time()
        call = prepare()
        call()
        compiled.append(time.process_time() - started)
        calls.append(call)
    their_time, our_time = (1000 * seconds / STEPS for seconds in in_turns(calls, repeats, time.process_time))
    return {
        "model": model,
        "published, ms": their_time,
        "lenmem, ms": our_time,
        "times": their_time / our_time,
        "published, start s": compiled[0],
        "lenmem, start s": compiled[1],
    }


def our_steps(experiment: Experiment) -> Call:
    """A call of `STEPS` training steps of one seed."""
    training = experiment.training
    model, task, optimizer = experiment.bound_model, experiment.task, training.transformation
    state = initial_state(model, task, optimizer, jax.random.split(jax.random.key(0), 1), keep_best=False)
    advance = make_advance(model, task, optimizer, **training.step_options)
    compiled = advance.lower(state, STEPS).compile()

    def call() -> None:
        nonlocal state
        state, _ = compiled(state)
        jax.block_until_ready(state)

    return call


# --- Le et al. (2024), PyTorch ----------------------------------------------------------------------------------------

PANM_MODELS: dict[str, tuple[str, dict[str, Any], str, Callable[[Any], Any]]] = {
    "lstm": (
        "lstm",
        {"hidden_size": 512},
        "baselines.nvm.lstm_baseline",
        lambda code: code.LSTMBaseline(12, 512, 10, 1),
    ),
    "ntm": (
        "ntm",
        {"hidden_size": 512, "slots": 128, "width": 32},
        "baselines.nvm.ntm_warper",
        lambda code: code.EncapsulatedNTM(
            num_inputs=12, num_outputs=10, controller_size=512, controller_layers=1, num_heads=1, N=128, M=32
        ),
    ),
    "dnc": (
        "dnc",
        {"hidden_size": 512, "slots": 128, "width": 32, "read_heads": 1},
        "baselines.dnc.dnc",
        lambda code: code.DNC(
            input_size=12, final_output_size=10, hidden_size=512, read_heads=1, nr_cells=128, cell_size=32, gpu_id=-1
        ),
    ),
    "attention": (
        "attention",
        {"hidden_size": 512},
        "baselines.nvm.con_att",
        lambda code: code.Seq2Seq(
            512, 10, 512, 512, embedded=True, emb_layer=importlib.import_module("torch").nn.Linear(12, 512)
        ),
    ),
    "transformer": (
        "transformer",
        {"hidden_size": 256, "layers": 2, "heads": 8, "feedforward_size": 512, "dropout": 0.2},
        "baselines.transformer",
        lambda code: code.TransformerModel(
            10, 256, 8, 512, 2, 0.2, encoder=importlib.import_module("torch").nn.Linear(12, 256)
        ),
    ),
    "panm": (
        "panm_published",
        {"hidden_size": 128},
        "baselines.panm",
        lambda code: code.PANM(in_size=12, out_size=10, embed_size=12, controller_size=128, hidden_dim=128),
    ),
}
"""Name -> our model and its fields; the module of the published code, and its model as `run_algo_task.py` makes it."""


def panm(peers: Path):
    """The models on copy."""
    sys.path.insert(0, str(peers / "PANM"))
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    optimizer = Optimizer("rmsprop", learning_rate=1e-4, decay=0.95, momentum=0.9, clip_value=10.0)
    for name, (ours, fields, module, make) in PANM_MODELS.items():
        training = Training(STEPS, batch_size=128, optimizer=optimizer, widths=WIDTHS.get(name, 1))
        experiment = Experiment(tasks.make("panm_copy"), models.make(ours, **fields), training)
        yield name, lambda name=name, module=module, make=make: torch_steps(torch, name, module, make), experiment


def torch_steps(torch: Any, name: str, module: str, make: Callable[[Any], Any]) -> Call:
    """A call of `STEPS` steps of the training loop of `run_algo_task.py`, without its logs."""
    data = importlib.import_module("datasets").CopyDataset(
        {"seq_width": 10, "min_seq_len": 1, "max_seq_len": 10, "prob": 0.5, "mode": "onehot"}
    )
    model = make(importlib.import_module(module))
    model.train()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, alpha=0.95, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    stepwise = name in ("lstm", "ntm")

    def call() -> None:
        for length in np.linspace(1, 10, STEPS).astype(int):
            optimizer.zero_grad()
            model.init_sequence(batch_size=128)
            batch = data.get_sample_wlen(int(length), bs=128)
            inputs, targets = batch["input"], batch["target"]
            if stepwise:
                for symbols in inputs:
                    model(symbols)
                outputs = torch.stack([model(torch.zeros_like(inputs[0]))[0] for _ in targets])
            else:
                outputs, _ = model(inputs, target_length=len(targets))
            loss = criterion(outputs.reshape(-1, 10), targets.reshape(-1, 10).argmax(-1))
            loss.backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 10.0)
            optimizer.step()

    return call


# --- Delétang et al. (2023), Haiku ------------------------------------------------------------------------------------

CHOMSKY_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "elman": ("rnn", {"hidden_size": 256}),
    "stack_rnn_vector": ("stack_rnn", {"hidden_size": 256, "stack_cell_size": 8, "stack_size": 30}),
    "tape_rnn": ("tape_rnn", {"hidden_size": 256, "memory_cell_size": 8, "memory_size": 100}),
    "lstm": ("lstm", {"hidden_size": 256}),
    "transformer_xl": ("transformer_encoder", {"dropout_prob": 0.0}),
}
"""Our model -> the name and the arguments of the published one, in the sizes of `configs/chomsky`."""


def chomsky(peers: Path):
    """The models on reverse_string."""
    sys.path.insert(0, str(peers))
    base = configs.load_config("chomsky/reverse_string")
    ours = configs.models_of("chomsky/reverse_string")
    ours["stack_rnn_vector"] = ours["stack_rnn_vector"].clone(slots=30)
    for name, (theirs, fields) in CHOMSKY_MODELS.items():
        training = dataclasses.replace(base.training, seeds=1, batch_size=128, widths=WIDTHS.get(name, 1))
        experiment = dataclasses.replace(base, model=ours[name], training=training)
        yield name, lambda theirs=theirs, fields=fields: haiku_steps(theirs, fields), experiment


def haiku_steps(name: str, fields: dict[str, Any]) -> Call:
    """A call of `STEPS` steps of its training loop. Its first call compiles a program for each of their lengths."""
    package = "neural_networks_chomsky_hierarchy.experiments"
    constants, training, utils = (importlib.import_module(f"{package}.{x}") for x in ("constants", "training", "utils"))
    if name == "transformer_encoder":
        encodings = importlib.import_module("neural_networks_chomsky_hierarchy.models.positional_encodings")
        fields = fields | {
            "positional_encodings": encodings.PositionalEncodings.RELATIVE,
            "positional_encodings_params": encodings.RelativeParams(),
        }
    import optax

    hk = importlib.import_module("haiku")
    task = constants.TASK_BUILDERS["reverse_string"]()
    made = constants.MODEL_BUILDERS[name](output_size=task.output_size, return_all_outputs=True, **fields)
    model = hk.transform(utils.make_model_with_empty_targets(made, task, 0, single_output=False))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def loss(outputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        return jnp.mean(jnp.sum(task.pointwise_loss_fn(outputs, targets), axis=-1)), {}

    key = jax.random.PRNGKey(0)
    params = model.init(key, task.sample_batch(key, length=10, batch_size=128)["input"])
    state = optimizer.init(params)

    def call() -> None:
        nonlocal params, state, key
        for length in np.linspace(40 // STEPS, 40, STEPS).astype(int):
            key, draw, use = jax.random.split(key, 3)
            batch = task.sample_batch(draw, length=int(length), batch_size=128)
            params, state, _ = training._update_parameters(
                params=params,
                rng_key=use,
                batch=batch,
                model_apply_fn=model.apply,
                loss_fn=loss,
                accuracy_fn=None,
                optimizer=optimizer,
                opt_state=state,
            )
        jax.block_until_ready(params)

    return call


TABLES = {"panm": panm, "chomsky": chomsky}


def page(text: str, record: dict[str, Any]) -> str:
    """The text of the page with the tables of a record between their marks."""

    def shown(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"

    for name, rows in record["tables"].items():
        lines = [f"| {' | '.join(rows[0])} |", f"| --- |{' ---: |' * (len(rows[0]) - 1)}"]
        lines += [f"| {' | '.join(map(shown, row.values()))} |" for row in rows]
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        text = before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    main()
