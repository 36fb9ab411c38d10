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
# # A memory that is enlarged after training
#
# The *differentiable neural computer* ([Graves et al. 2016](https://www.nature.com/articles/nature20101)) writes to
# free slots of its memory, and remembers in which order it wrote. None of its parameters depends on the number of
# slots. So a trained machine can be given a larger memory, as a computer can. [Ofner & Kern
# 2021](https://arxiv.org/abs/2110.09138) ask whether it can use it, and keep the controller's states close together so
# that it can.
#
# This notebook trains three such machines to copy up to 10 symbols with 16 slots, gives them more, and looks at what
# they write, free and link. It takes about four minutes on one CPU core.
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
import numpy as np
from rich import print

import lenmem
from lenmem import runs
from lenmem.evaluation import plots, states, traces
from lenmem.tasks.base import draw

# Optimiser steps of every training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "800"))

# %% [markdown]
# ## Train
#
# Three controllers: an LSTM; one with both constraints of the paper (its cell state, which it feeds back instead of its
# output, is squashed, and a loss pulls states towards each other); and one without any state, which can only remember
# what it has written. Links are sharpened, as [Csordás & Schmidhuber](https://arxiv.org/abs/1904.10278) do.

# %%
task = lenmem.tasks.make("copy", vocabulary=8, train_lengths=(2, 10), test_lengths=(11, 40))
cosine = lenmem.training.Cosine(warmup=0.1)
adam = lenmem.Optimizer("adam", learning_rate=5e-3, schedule=cosine, clip_norm=1.0)
training = lenmem.Training(steps=STEPS, batch_size=32, seeds=2, optimizer=adam, log_every=max(1, STEPS // 4))
lengths = lenmem.Evaluation(lengths=(5, 10, 14, 20, 30, 40), samples=32)
size = {"hidden_size": 32, "slots": 16, "width": 12, "read_heads": 1, "link_sharpness": True, "deallocation": True}
names = {
    "LSTM": "dnc",
    "constrained": "dnc_compression_regularized",
    "no state": "dnc_stateless",
}


def trained(label):
    """The result of a training."""

    def report(entry):
        losses = " ".join(f"{loss:.4f}" for loss in entry["loss"])
        print(f"{label:12} step {entry['step']:5}  losses {losses}  {entry['seconds']:.0f} s")

    experiment = lenmem.Experiment(task, lenmem.models.make(names[label], **size), training, lengths)
    return lenmem.train(experiment, report=report)


results = {label: trained(label) for label in names}

# %% [markdown]
# ## More slots
#
# The same parameters, measured with 16 slots and with 64. A sequence of 16 symbols fills the memory of training.


# %%
def enlarged(result, slots):
    """The experiment of a result with another number of slots."""
    model = dataclasses.replace(result.experiment.model, slots=slots)
    return dataclasses.replace(result.experiment, model=model)


def curve(label, slots):
    """Accuracy by length with that many slots."""
    return lenmem.measure(enlarged(results[label], slots), results[label].params, label=f"{label}, {slots} slots")


curves = {(label, slots): curve(label, slots) for label in names for slots in (16, 64)}
plots.plot_curves(list(curves.values()))

# %% [markdown]
# With the memory of training every machine fails when it is full. With more slots the same parameters work for longer,
# best in the machine without a state. Two seeds do not decide between an LSTM and a constrained one; the records of
# `lenmem zoo dnc` have three seeds of a longer training.
#
# ## What it writes, and what it reads
#
# One example of 24 symbols in a memory of 32 slots, for the machine without a state. Time runs downwards; below the
# line it answers. Each symbol goes to a slot of its own. Which one does not matter: reading follows the links from each
# slot to the one that was written next.

# %%
length, slots = 24, 32
batch = runs.example_batch(task, length)


def seen_by(label, batch):
    """Traces of the seed with the best curve."""
    best = curves[label, 64].values["token_accuracy"].mean(axis=1).argmax()
    params = jax.tree.map(lambda x: x[best], results[label].params)
    return traces.collect(enlarged(results[label], slots).bound_model, params, batch)


seen = seen_by("no state", batch)
heads = np.stack([seen["write_weights"][0], seen["read_weights"][0][:, 0]])
plots.plot_maps(heads, titles=["write head", "read head"], xlabel="slot", mark=length + 1)

# %% [markdown]
# ## Usage and links
#
# Usage rises when a slot is written, and falls when it has been read: the machine has learned to free what it no longer
# needs.

# %%
plots.plot_attention(seen["usage"][0], xlabel="slot", title="usage", mark=length + 1)

# %% [markdown]
# The links after the last symbol was read: the entry in row i and column j is large if slot i was written right after
# slot j.

# %%
plots.plot_attention(seen["link"][0][length - 1], xlabel="slot j", ylabel="slot i", title="links")

# %% [markdown]
# Sorted by the time at which they were written, the slots are a chain.

# %%
order = seen["write_weights"][0][:length].argmax(axis=1)
chain = seen["link"][0][length - 1][np.ix_(order, order)]
plots.plot_attention(chain, xlabel="symbol j", ylabel="symbol i", title="links, in the order of writing")

# %% [markdown]
# ## The states of the controllers
#
# Each path is an example of 24 symbols while it is read, on the two axes along which the states vary most. In training
# no state was later than the tenth. Dark dots are early, bright ones late. The LSTM's states move on with time, into a
# region that no training has seen; the constrained ones come back to the same places, early and late. The curvature of
# the paths, which the paper relates to generalisation, is about the same for both here.

# %%
several = draw(task, jax.random.key(3), jnp.full(16, length), length)
maps = {}
for label in ("LSTM", "constrained"):
    found = seen_by(label, several)
    maps[label] = states.pca_map(found, "encoding")
    print(f"{label:12} mean curvature of the paths {states.curvature(found).mean:.3f}")
plots.plot_states(maps)
