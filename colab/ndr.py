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
# # A Transformer that waits for its operands
#
# The *Neural Data Router* ([Csordás, Irie & Schmidhuber 2022](https://arxiv.org/abs/2110.07732)) applies one
# Transformer layer repeatedly. A gate lets every column wait, unchanged, until its operands are computed; geometric
# attention finds the nearest match at any distance. The network is trained on up to five nested functions and tested on
# ten. This takes about three minutes on one CPU core, too few steps to learn the rule completely.
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

import jax
import jax.numpy as jnp
from rich import print

import lenmem
from lenmem import ops, runs
from lenmem.evaluation import plots, tables, traces

# Optimiser steps of the training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "2500"))

# %% [markdown]
# ## The nearest match
#
# Each position matches each other one with some probability, and attends to the closest match: first its right
# neighbour is tried, then its left one, then the next two. Here all but three keys are poor matches.

# %%
logits = jnp.full((9, 9), -4.0).at[:, jnp.array([1, 4, 8])].set(4.0)
plots.plot_attention(ops.geometric_attention_weights(logits), xlabel="source", ylabel="target")

# %% [markdown]
# ## Table lookup
#
# `101 d a b` asks for b(a(d(101))). The functions are fixed tables on eight symbols; they must be applied one after
# another to find the answer. The network has a quarter of the published width; the configuration `ndr/ctl_tiny` trains
# it for 4000 steps.

# %%
experiment = lenmem.load_config("ndr/ctl_tiny")
task = experiment.task
training = dataclasses.replace(experiment.training, steps=STEPS, log_every=max(1, STEPS // 5))
experiment = dataclasses.replace(experiment, training=training)
print(experiment.model)


# %%
def report(entry):
    """One line of progress."""
    print(f"step {entry['step']:5}  loss {entry['loss'][0]:.4f}  {entry['seconds']:.0f} s")


result = lenmem.train(experiment, report=report)

# %%
curve = lenmem.measure(result, label="NDR")
print(tables.curve_table([curve], rows=16))

# %%
plots.plot_curves([curve], metric="exact_match")

# %% [markdown]
# ## How the network reads
#
# The attention of each column in each step of the network, and how much each column was rewritten. A network that
# generalises goes from the symbol to the right, one function after another. This one has not finished learning: its
# accuracy is below 100% for lengths of training too, and its walk is blurred.

# %%
batch = runs.typed_batch(task, "101 c d a b")
seen = traces.collect(experiment.bound_model, jax.tree.map(lambda x: x[0], result.params), batch)
names = traces.column_names(task.spec, batch, 0, task.input_names.__getitem__)
plots.plot_ndr_attention(seen, 0, names=names)

# %%
plots.plot_ndr_gates(seen, 0, names=names)
