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
# # A memory that works beyond the trained lengths
#
# The *Lie-access neural Turing machine* ([Yang & Rush, ICLR 2017](https://arxiv.org/abs/1611.02854)) keeps its memory
# in a plane. To write, a head moves by a small shift and stores a value at its position; to read, another head moves by
# its own shifts and averages the values nearby. A network that has learned to move one step on, every time, can walk
# any distance, so it copies sequences far longer than those it was trained on.
#
# This notebook trains one on sequences of up to 16 tokens, measures it at up to twice that length, looks into its
# memory, compares it with an LSTM, and ends with a model of your own. It takes about two minutes on two CPU cores.
# The times below are those of a busy machine.

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
import dataclasses
import os

import flax.linen as nn
import jax
import jax.numpy as jnp
from rich import print

import lenmem
from lenmem.evaluation import plots, tables, traces

# Optimiser steps of every training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "1000"))

# %% [markdown]
# ## Train
#
# An experiment is a task, a model and a training. Tasks and models are dataclasses: every field can be set. All seeds
# are trained in one program; here one is enough. The settings are those of `lenmem train quickstart`.

# %%
task = lenmem.tasks.make("copy", vocabulary=128, train_lengths=(2, 16))  # tested at 17 to 32
cosine = lenmem.training.Cosine(warmup=0.1)
adam = lenmem.Optimizer("adam", learning_rate=3e-2, schedule=cosine, clip_norm=1.0, b2=0.9)
training = lenmem.Training(steps=STEPS, batch_size=32, seeds=1, optimizer=adam, log_every=max(1, STEPS // 8))


def report(entry):
    """One line of progress."""
    print(f"step {entry['step']:5}  loss {entry['loss'][0]:.4f}  {entry['seconds']:.0f} s")


experiment = lenmem.Experiment(task, lenmem.models.make("lantm", read_gate_bias=0.0, forget_bias=0.0), training)
result = lenmem.train(experiment, report=report)

# %% [markdown]
# ## Measure
#
# Accuracy by length, from the shortest training length to twice the longest. *Token accuracy* counts tokens, *exact
# match* counts whole answers.

# %%
curve = lenmem.measure(result, label="LANTM")
print(tables.curve_table([curve], rows=12))

# %%
plots.plot_curves([curve])

# %% [markdown]
# ## Look into the memory
#
# One example of 12 tokens: where the network wrote (red), how strongly, and where it read while answering (blue). A
# network that has learned to copy writes along a trail, and reads along the same trail from its start.

# %%
example = task.sample(jax.random.key(2), 12, 12)
batch = jax.tree.map(lambda x: x[None], example)
params = jax.tree.map(lambda x: x[0], result.params)  # of the first seed
seen = traces.collect(experiment.bound_model, params, batch)
names = traces.token_names(task.vocabulary)
print({name: value.shape for name, value in seen.items()})

# %%
plots.plot_key_space(seen, 0, names=names)

# %% [markdown]
# The same memory with one row per step and the keys projected on the axis along which they vary most (the paper's
# Figure 2).

# %%
plots.plot_rows(seen, 0, names=names)

# %% [markdown]
# How much of each memory slot was read at each step. While answering, a network that copies goes from slot to slot.

# %%
plots.plot_attention(seen["read_weights"][0])

# %% [markdown]
# ## An LSTM beside it
#
# An LSTM of about the same size must compress the whole input into a state of fixed width. Its learning rate is the
# best of four for the lengths of training, as in `configs/quickstart.py`.

# %%
slower = dataclasses.replace(training, optimizer=dataclasses.replace(adam, learning_rate=1e-2))
lstm = lenmem.Experiment(task, lenmem.models.make("lstm", hidden_size=64, embedding_size=32), slower)
lstm_result = lenmem.train(lstm, report=report)
lstm_curve = lenmem.measure(lstm_result, label="LSTM")
plots.plot_curves([curve, lstm_curve])

# %% [markdown]
# ## Bring your own
#
# A cell defines its initial state and one step. `Transducer` does the rest: it embeds the input, runs the cell over it,
# and reads out the answer.


# %%
class Averaging(nn.Module):
    """A running mean of the inputs. It will not copy well: what would you change?"""

    hidden_size: int = 64

    def start(self, batch_shape, steps):
        """The state before the first step."""
        return jnp.zeros((*batch_shape, self.hidden_size))

    @nn.compact
    def __call__(self, state, step):
        """(new state, output) after one step; `step.inputs` is the embedded token."""
        new = nn.tanh(nn.Dense(self.hidden_size)(jnp.concatenate([step.inputs, state], axis=-1)))
        state = 0.9 * state + 0.1 * new
        return state, state


own = lenmem.Experiment(task, lenmem.nn.Transducer(Averaging()), training)
own_result = lenmem.train(own, report=report)
own_curve = lenmem.measure(own_result, label="Averaging")
plots.plot_curves([curve, lstm_curve, own_curve])
