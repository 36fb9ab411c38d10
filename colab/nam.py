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
# # A matrix as a memory, and a Turing machine made of two
#
# *Neural attention memory* ([Nam & Seo 2023](https://arxiv.org/abs/2302.09422)) splits attention into two operations on
# a matrix: writing adds an outer product, reading multiplies by a query. A sequence of writes is a linear attention; on
# a tape, the operations make a Turing machine that learns to reverse ten digits and then reverses sixteen. This
# notebook takes about two minutes on two idle CPU cores; the times below are those of a busy machine.

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

import jax
import jax.numpy as jnp
from rich import print

import lenmem
from lenmem import ops, parallel
from lenmem.evaluation import plots, tables, traces

# Optimiser steps of the training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "350"))

# %% [markdown]
# ## Write, then read
#
# `nam_write` stores a value under a unit key, erasing the previous value of that key; `nam_read` returns it exactly,
# whatever else the matrix holds (Theorem 1).

# %%
keys = jax.random.split(jax.random.key(0), 3)
memory = jax.random.normal(keys[0], (4, 8))  # [d_v, d_k], full of other things
key = ops.unit(jax.random.normal(keys[1], (8,)))
value = jax.random.normal(keys[2], (4,))
memory = ops.nam_write(memory, key, value, 1.0, 1.0)
print("written", value)
print("read   ", ops.nam_read(memory, key, 1.0))

# %% [markdown]
# ## A whole sequence
#
# Without erasure, the writes of a sequence are a sum: *normalized outer-product attention*, whose cost is linear in the
# length, not quadratic. The sum can be computed in pieces, one on each device, which exchange only the small matrices.

# %%
query, key, value = jax.random.normal(jax.random.key(1), (3, 1, 4096, 16))
attended = ops.normalized_outer_product_attention(query, key, value, causal=True)
spread = parallel.pmap_outer_product_attention(query, key, value, causal=True)
print(f"on {jax.local_device_count()} device(s), largest difference: {float(jnp.max(jnp.abs(attended - spread))):.1e}")

# %% [markdown]
# ## The Turing machine
#
# A tape is a memory whose keys are places. Its heads move left, stay, move right, or jump to a place where a key was
# written; a network that reads the input controls them. It is trained to reverse numbers of 1 to 10 digits.

# %%
task = lenmem.tasks.make("palindrome")
adam = lenmem.Optimizer("adam", learning_rate=3e-3, schedule=lenmem.training.Cosine(), clip_norm=1.0)
training = lenmem.Training(
    steps=STEPS, batch_size=32, seeds=1, optimizer=adam, log_every=max(1, STEPS // 5), checkpoint_every=0
)
model = lenmem.models.make("nam_tm", hidden_size=64, normalize_heads=True)
experiment = lenmem.Experiment(task, model, training)


def report(entry):
    """One line of progress."""
    print(f"step {entry['step']:5}  loss {entry['loss'][0]:.4f}  {entry['seconds']:.0f} s")


result = lenmem.train(experiment, report=report)

# %%
curve = lenmem.measure(result, label="NAM-TM")
print(tables.curve_table([curve], rows=12))

# %%
plots.plot_curves([curve])

# %% [markdown]
# ## The heads
#
# One number of 8 digits, step by step from top to bottom: the positions of the write head and the read head of the
# first tape, and the jump table, the places to which the read head can jump.

# %%
batch = jax.tree.map(lambda x: x[None], task.sample(jax.random.key(2), 8, 8))
params = jax.tree.map(lambda x: x[0], result.params)
seen = traces.collect(experiment.bound_model, params, batch)
plots.plot_tape(seen, 0, layer=1)
