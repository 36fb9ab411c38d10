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
# # Your own data
#
# The task `pairs` takes any set of inputs and answers, from a file or from memory. It sorts them by the length of the
# input, trains on the shorter ones, and tests on the longer ones. This tutorial makes such a set, trains two networks
# on it, and asks them. It takes one to two minutes on one CPU core.
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
import os
import random

import lenmem
from lenmem import runs
from lenmem.evaluation import plots

# Optimiser steps of every training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "400"))

# %% [markdown]
# ## Rows
#
# Any iterable of mappings will do, such as a Hugging Face `datasets.Dataset`; so will a file with one JSON object per
# line. Here an input is a list of letters, and the answer the same list backwards.

# %%
random.seed(0)
rows = []
for _ in range(3000):
    letters = random.choices("abcdefgh", k=random.randint(1, 16))
    rows.append({"input": " ".join(letters), "output": " ".join(reversed(letters))})
rows[:3]

# %% [markdown]
# ## The task
#
# Of the pairs, the shorter 60% are for training; a tenth of these are held out at random. The boundary lies between
# pairs of 10 letters, so this length is in both parts. `length_given` tells the
# network how long the answer is. Without it a network must end the answer itself.

# %%
task = lenmem.tasks.make("pairs", rows=rows, columns=("input", "output"), train_share=0.6, length_given=True)
print("trains on lengths", task.train_lengths, "and is tested on", task.test_lengths)
print("tokens", task.input_names)

# %% [markdown]
# ## Train
#
# Pointers that walk over addresses, and an LSTM. Two seeds each. No run is overwritten: to run this cell again, delete
# `runs/own_data`.

# %%
adam = lenmem.Optimizer("adam", learning_rate=3e-3, schedule=lenmem.training.Cosine(), clip_norm=1.0)
training = lenmem.Training(steps=STEPS, batch_size=64, seeds=2, optimizer=adam)
networks = {
    "pointers": lenmem.models.make("panm_beyond", hidden_size=64),
    "LSTM": lenmem.models.make("lstm", hidden_size=64),
}
results = {
    name: lenmem.train(lenmem.Experiment(task, network, training), directory=f"runs/own_data/{name}")
    for name, network in networks.items()
}
curves = [lenmem.measure(result, label=name) for name, result in results.items()]

# %%
plots.plot_curves(curves)

# %% [markdown]
# ## Ask
#
# A run has stored the rows as plain text. It can be opened later, without them, and asked anything that is written with
# its tokens.

# %%
for name in networks:
    run = lenmem.load(f"runs/own_data/{name}")
    print(f"{name:9}", " ".join(runs.predict(run, "h e a d b a g e h e a d b a g e")))

# %% [markdown]
# ## The same from a shell
#
# Commands such as `predict` take the directory of a run. `lenmem train pairs --task.path rows.jsonl --model lstm`
# trains from a file.

# %% language="bash"
# lenmem predict runs/own_data/pointers --input "a b c d e f g h"
# lenmem evaluate runs/own_data/pointers --lengths 4 8 12 16 --samples 16 2> evaluate.log

# %% [markdown]
# The page on data of your own has all options, and what a run stores.
