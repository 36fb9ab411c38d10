# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own cell
#
# A recurrent cell needs an initial state and a step. `lenmem.nn.Transducer` embeds the input, runs the cell over it,
# and reads the answer. This tutorial builds a memory from nothing, in twenty lines: a tape with a head that learns to
# move. Then we look at the head, find what limits it, and remove that. It takes under two minutes on a CPU core.

# %% tags=["hide-cell"]
# Where to install lenmem from, if it is not installed: an address such as
# "git+https://github.com/OWNER/lenmem", or the path of a clone or a wheel. Empty: a wheel beside this notebook.
LENMEM = ""  # @param {type: "string"}

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("lenmem") is None:
    wheels = sorted(Path().glob("lenmem-*.whl"), key=lambda path: path.stat().st_mtime)
    source = LENMEM or (str(wheels[-1]) if wheels else "")
    if not source:
        raise ValueError(
            "lenmem is not installed, and no wheel is beside this notebook. Fill in LENMEM at the top of this "
            'cell: an address such as "git+https://github.com/OWNER/lenmem", or the path of a clone or a wheel'
        )
    # A newer JAX cannot use the plugin of an older one for a GPU or TPU, and pip does not upgrade it unless asked.
    known = {"jax_cuda12_plugin": "jax[cuda12]", "jax_cuda13_plugin": "jax[cuda13]", "libtpu": "jax[tpu]"}
    plugins = [extra for module, extra in known.items() if importlib.util.find_spec(module)]
    pip = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", source, *plugins], check=False)
    if pip.returncode:
        raise ValueError(f"pip could not install {source!r}, see above. Is LENMEM at the top of this cell right?")
    importlib.invalidate_caches()

import jax

print(f"jax {jax.__version__} on {', '.join(map(str, jax.devices()))}")
smi = shutil.which("nvidia-smi")
listed = subprocess.run([smi, "-L"], capture_output=True, text=True, check=False).stdout if smi else ""
if "GPU" in listed and jax.default_backend() == "cpu":
    print(f"WARNING: JAX does not use the GPU of this machine:\n{listed}Install jax[cuda13], or jax[cuda12] where the")
    print("driver is older than 580, in the version that is printed above, and restart the notebook.")

# %%
# %matplotlib inline
import os

import flax.linen as nn
import jax
import jax.numpy as jnp

import lenmem
from lenmem import runs
from lenmem.evaluation import plots, traces

# Optimiser steps of every training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "600"))

# %% [markdown]
# ## The cell
#
# `start` gets the number of steps of the scan, so a memory can have one cell for each. `step.decoding` says for each
# row whether the answer has begun. The write head moves on by itself while the input is read. The read head is a
# distribution over cells; after each step it moves left, stays, or moves right, as the input tells it (the answer's
# steps have an input of their own, a blank). Nothing in it depends on a position, so nothing has to be
# learned again for a longer input.
#
# `sow` records a value for inspection; it costs nothing when nothing is inspected.


# %%
def moved(head, moves):
    """A head [B, n] after a mixture of moves [B, 3]: left, stay, right."""
    padded = jnp.pad(head, ((0, 0), (1, 1)))
    left, stay, right = padded[:, 2:], head, padded[:, :-2]
    return moves[:, :1] * left + moves[:, 1:2] * stay + moves[:, 2:] * right


class Tape(nn.Module):
    """A tape [B, n, size] that is written once, from left to right, and read by a head that learns to move."""

    size: int = 32
    rounded: bool = False

    def start(self, batch_shape, steps):
        first = jnp.zeros((*batch_shape, steps)).at[..., 0].set(1.0)
        return jnp.zeros((*batch_shape, steps, self.size)), first, first

    @nn.compact
    def __call__(self, carry, step):
        tape, write, read = carry
        reading = ~step.decoding[:, None]
        value = nn.Dense(self.size, name="value")(step.inputs)
        tape = jnp.where(reading[..., None], tape + write[..., None] * value[:, None], tape)
        write = jnp.where(reading, moved(write, jnp.array([[0.0, 0.0, 1.0]])), write)
        moves = nn.softmax(nn.Dense(3, name="move")(step.inputs))
        moves = jnp.round(moves) if self.rounded else moves
        self.sow("traces", "read_weights", read)
        self.sow("traces", "moves", moves)
        return (tape, write, moved(read, moves)), jnp.einsum("bn,bnd->bd", read, tape)


# %% [markdown]
# ## Train it beside an LSTM
#
# On copying up to 10 symbols of 16, with three seeds each.

# %%
task = lenmem.tasks.make("copy", vocabulary=16, train_lengths=(1, 10), test_lengths=(11, 80))
adam = lenmem.Optimizer("adam", learning_rate=1e-2, schedule=lenmem.training.Cosine(), clip_norm=1.0)
training = lenmem.Training(steps=STEPS, batch_size=32, seeds=3, optimizer=adam)
lengths = lenmem.Evaluation(lengths=(1, 5, 10, 12, 15, 20, 40, 80), samples=32)
networks = {"tape": lenmem.nn.Transducer(Tape()), "LSTM": lenmem.models.make("lstm", hidden_size=64)}
results = {
    name: lenmem.train(lenmem.Experiment(task, network, training, lengths)) for name, network in networks.items()
}
curves = [lenmem.measure(result, label=name) for name, result in results.items()]

# %%
plots.plot_curves(curves)

# %% [markdown]
# ## What the head does
#
# Time runs downwards; below the line the network answers. While it reads the input, the head stays in the first cell.
# Then it moves on by one cell at each step.

# %%
batch = runs.example_batch(task, 24)
tape = results["tape"]
best = curves[0].values["exact_match"].mean(axis=1).argmax()
params = jax.tree.map(lambda x: x[best], tape.params)
seen = traces.collect(tape.experiment.bound_model, params, batch)
plots.plot_attention(seen["read_weights"][0], xlabel="cell", mark=24)

# %% [markdown]
# The moves at each step, from left to right. They are not quite 0 and 1, so the head blurs a little at every step; this
# is what ends the curve above.

# %%
moves = {"move": seen["moves"][0]}
plots.plot_strips(moves, rows={"move": ["left", "stay", "right"]}, mark=24)

# %% [markdown]
# ## Rounded
#
# Now that the reason is known, it can be removed: the same parameters in a cell that rounds its moves. (Training needs
# moves that are not round, since rounding has no gradient.)

# %%
rounded = lenmem.Experiment(task, lenmem.nn.Transducer(Tape(rounded=True)), training, lengths)
curves.append(lenmem.measure(rounded, tape.params, label="tape, rounded"))
plots.plot_curves(curves)

# %% [markdown]
# ## What to try
#
# Train on `reverse`: can the head find the end? Let the moves depend on what was read last, and try `double`.
#
# `lenmem train mine.py` trains the network defined in a file from the command line, and the page on models of your
# own has the other kinds: encoders, encoder-decoders, any Linen module.
