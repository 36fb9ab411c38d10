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
# # Reading a memory
#
# Networks of the zoo are trained already. This tutorial opens one that reverses sequences, asks where its heads are,
# measures their steps, and then interferes: it changes one symbol at a time, and sees which answers change. Nothing is
# trained. It takes about half a minute on one CPU core.

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
import jax
import numpy as np

import lenmem
from lenmem import runs
from lenmem.evaluation import plots, traces
from lenmem.zoo import shelf

# %% [markdown]
# ## A network by name
#
# `lenmem zoo` lists them all. This one was trained on up to 64 symbols; its card says how far it goes.

# %%
run = lenmem.load("zoo:lantm/reverse")
task = run.experiment.task
print(run.experiment.model)

# %%
answer = runs.answer_example(run, 100)
print("right:", sum(answer.hits), "of", len(answer.hits))

# %% [markdown]
# ## What can be seen
#
# Every value that a network sows can be inspected. For a Lie-access memory these are the positions of its heads, the
# strength of each write, and the weights of each read.

# %%
batch = runs.example_batch(task, 20)
entry = shelf.find("lantm/reverse")
params = run.seed_params()
seen = traces.collect(run.experiment.bound_model, params, batch)
for name, value in seen.items():
    print(f"{name:16}", value.shape)

# %%
plots.plot_key_space(seen, 0, names=traces.token_names(task.vocabulary))

# %% [markdown]
# ## A step that is always the same
#
# The path of the write head while it reads the input, and of the read head while it answers. If the network has learned
# a rule, each head makes the same step again and again, and the second is the first one backwards.

# %%
length = 20
write = np.diff(seen["write_head"][0][1 : length + 1], axis=0)
read = np.diff(seen["read_head"][0][length + 1 : 2 * length], axis=0)
for name, steps in (("write", write), ("read", read)):
    print(f"{name:6} mean step {steps.mean(axis=0).round(3)}, spread {steps.std(axis=0).round(3)}")
there, back = (steps.mean(axis=0) / np.linalg.norm(steps.mean(axis=0)) for steps in (write, read))
print(f"cosine of the two: {there @ back:.3f}")

# %% [markdown]
# ## Which slot is read
#
# The weights over what was written, in each step of the answer.

# %%
plots.plot_attention(seen["read_weights"][0][length + 1 :], ylabel="answer", xlabel="written at step")

# %% [markdown]
# ## What an answer depends on
#
# Weights show where a network looked, not what it used. So change one symbol of the input at a time, and see how much
# the probability of each right answer falls. Twenty inputs, each with another symbol changed, are one batch. A network
# that reverses by reading one cell for each answer has one mark in every row.

# %%
changed = np.repeat(np.asarray(batch.inputs), length, axis=0)
changed[np.arange(length), np.arange(length)] = (changed[np.arange(length), np.arange(length)] + 1) % task.vocabulary
masks = [np.repeat(np.asarray(mask), length, axis=0) for mask in (batch.input_mask, batch.target_mask)]
targets = np.asarray(batch.targets)[0]


def probabilities(inputs, *masks):
    """Of the right answers to the unchanged input: float[rows, answers]."""
    outputs = run.apply(inputs, *masks, seed=entry.best_seed)
    return np.asarray(jax.nn.softmax(outputs))[:, np.arange(len(targets)), targets]


before = probabilities(batch.inputs, batch.input_mask, batch.target_mask)
fall = np.clip(before - probabilities(changed, *masks), 0, 1).T
plots.plot_maps(fall[None], xlabel="changed symbol", ylabel="answer", label="fall of probability")

# %% [markdown]
# The last row is the end symbol, which no symbol of the input decides.
#
# ## In a browser
#
# `lenmem gallery zoo:lantm/reverse --output site` writes a page on which a slider moves through the same traces, step
# by step, and beside another network if you like. `lenmem plot zoo:lantm/reverse --length 20` draws the pictures
# of the traces on this page into a folder.
