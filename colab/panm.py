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
# # Pointers that count, at any length
#
# *Pointer-augmented neural memory* ([Le et al. 2024](https://arxiv.org/abs/2404.11870)) gives every slot of its memory
# an address, and moves pointers over the addresses. The units that move them never see data. A rule such as "the
# address before this one" therefore holds for new data, and at new places.
#
# This notebook trains two such networks and an LSTM to reverse up to 9 symbols, tests them on up to 200, and watches
# the pointers walk. It takes about four minutes on one CPU core.

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
import numpy as np
from rich import print

import lenmem
from lenmem import ops
from lenmem.evaluation import plots, tables, traces

# Optimiser steps of every training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "1000"))

# %% [markdown]
# ## Two ways to write an address
#
# The paper writes an address as the bits of a binary number (left, addresses from top to bottom). Adding 1 then needs
# carries, and long carries are rare in short sequences. `panm_beyond`, which is ours, writes it as phases: each pair of
# columns is the hand of a clock with its own speed (right, the cosines). Adding 1 turns every clock by a fixed angle,
# which is one linear map for all addresses.

# %%
bits = ops.address_bank(0, 32, bits=8)
phases = ops.phase_bank(0, 32, bits=8)[:, :8]
titles = ["bits", "phases"]
plots.plot_maps(np.stack([bits, phases]), titles=titles, xlabel="column", ylabel="address", label="value")

# %% [markdown]
# ## Train
#
# Three networks on the same task: the LSTM has no memory, `panm` is close to the paper, `panm_beyond` carries nothing
# from step to step but its pointers. Two seeds each.

# %%
task = lenmem.tasks.make("panm_reverse")  # 10 symbols, trained on 1 to 9 of them
adam = lenmem.Optimizer("adam", learning_rate=3e-3, schedule=lenmem.training.Cosine(), clip_norm=1.0)
training = lenmem.Training(steps=STEPS, batch_size=64, seeds=2, optimizer=adam, log_every=max(1, STEPS // 4))
lengths = lenmem.Evaluation(lengths=(4, 9, 12, 16, 40, 80, 200), samples=32)


def trained(name, **fields):
    """The result of a training and its curve."""

    def report(entry):
        losses = " ".join(f"{loss:.4f}" for loss in entry["loss"])
        print(f"{name:12} step {entry['step']:5}  losses {losses}  {entry['seconds']:.0f} s")

    experiment = lenmem.Experiment(task, lenmem.models.make(name, hidden_size=64, **fields), training, lengths)
    result = lenmem.train(experiment, report=report)
    return result, lenmem.measure(result, label=name)


beyond, beyond_curve = trained("panm_beyond")
panm, panm_curve = trained("panm")
lstm, lstm_curve = trained("lstm")

# %% [markdown]
# ## Far beyond training
#
# The lengths of training are shaded; the axis is logarithmic, so that they remain visible.

# %%
curves = [beyond_curve, panm_curve, lstm_curve]
print(tables.curve_table(curves, rows=8))

# %%
plots.plot_curves(curves)

# %% [markdown]
# ## The pointers walk
#
# One example of 24 symbols: the weights of each pointer over the slots, with the answers from top to bottom. The first
# pointer starts at the base, the second at the end of the memory. What must be read to reverse a sequence lies on the
# diagonal from the upper right to the lower left.

# %%
batch = jax.tree.map(lambda x: x[None], task.sample(jax.random.key(2), 24, 24))


def seen_by(result, curve):
    """Traces of the seed that goes furthest."""
    best = curve.values["exact_match"].mean(axis=1).argmax()
    params = jax.tree.map(lambda x: x[best], result.params)
    return traces.collect(result.experiment.bound_model, params, batch)


walk = seen_by(beyond, beyond_curve)
plots.plot_pointers(walk, 0, title="panm_beyond")

# %%
lost = seen_by(panm, panm_curve)
plots.plot_pointers(lost, 0, title="panm")

# %% [markdown]
# The same walk as numbers: the address of the slot that each pointer is closest to, at each answer.

# %%
print(np.asarray(walk["pointer_weights"][0].argmax(axis=-1)).T)

# %% [markdown]
# ## What to try
#
# `panm_beyond` differs from `panm` in seven fields, which are listed in `lenmem.models.panm.BEYOND`. Set one of them
# back, for instance `trained("panm_beyond", address_code="bits")`: how far does it go now?
