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
# # Your own task
#
# A task says how long its examples are, how to draw one, and what its tokens are. Batches, splits, loss, metrics and
# curves follow from that. This tutorial writes a task that no paper has, *backwards, plus one*, trains two networks on
# it, and looks at what they answer. It takes one to two minutes on one CPU core.

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

import lenmem
from lenmem import runs
from lenmem.evaluation import plots, traces

# Optimiser steps of every training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "400"))

# %% [markdown]
# ## The task
#
# The answer to `3 1 4` is `5 2 4`: backwards, and every symbol is the next one. `sample` draws one example; it is
# compiled, so `length` may be traced and only `capacity`, the size of the arrays, is fixed. Slots beyond the length are
# padding. A mask says which slots are real, and no network sees what is in the others.


# %%
@dataclasses.dataclass(frozen=True)
class BackwardsPlusOne(lenmem.Task):
    """y_t = x_{L + 1 - t} + 1, modulo the number of symbols."""

    vocabulary: int = 10
    train_lengths: tuple[int, int] = (1, 10)
    test_lengths: tuple[int, int] = (11, 30)

    @property
    def spec(self):
        size = self.vocabulary
        return lenmem.Spec(vocabulary=size, output_size=size, shared_ids=True, chance=1 / size, shapes=self.shapes)

    def shapes(self, capacity):
        return capacity, capacity  # slots of the input, slots of the answer

    def sample(self, key, length, capacity):
        inputs = jax.random.randint(key, (capacity,), 0, self.vocabulary)
        slots = jnp.arange(capacity)
        answer = (inputs[jnp.maximum(length - 1 - slots, 0)] + 1) % self.vocabulary
        real = slots < length
        return lenmem.Example(jnp.where(real, inputs, 0), real, jnp.where(real, answer, 0), real, real)


task = BackwardsPlusOne()
example = task.sample(jax.random.key(0), length=5, capacity=8)
for name, values in example._asdict().items():
    print(f"{name:12}", values)

# %% [markdown]
# More capacity must change only the padding. That is easily checked, and worth a test in your project:

# %%
small, large = (task.sample(jax.random.key(1), 5, capacity) for capacity in (5, 9))
assert all((a == b[:5]).all() for a, b in zip(small, large, strict=True))

# %% [markdown]
# ## Train
#
# Pointers that walk over addresses, and an LSTM. Two seeds each. No run is overwritten: to run this cell again, delete
# `runs/own_task`.

# %%
adam = lenmem.Optimizer("adam", learning_rate=3e-3, schedule=lenmem.training.Cosine(), clip_norm=1.0)
training = lenmem.Training(steps=STEPS, batch_size=64, seeds=2, optimizer=adam)
lengths = lenmem.Evaluation(lengths=(1, 5, 10, 12, 15, 20, 25, 30))
networks = {
    "pointers": lenmem.models.make("panm_beyond", hidden_size=64),
    "LSTM": lenmem.models.make("lstm", hidden_size=64),
}
results = {
    name: lenmem.train(lenmem.Experiment(task, network, training, lengths), directory=f"runs/own_task/{name}")
    for name, network in networks.items()
}
curves = [lenmem.measure(result, label=name) for name, result in results.items()]

# %%
plots.plot_curves(curves)

# %% [markdown]
# ## What it answers
#
# A saved run is opened with the class of its task, since nothing in a run is executed. One example that is longer than
# any in training, answered by the better seed of each network, with its mistakes marked:

# %%
loaded = {name: lenmem.load(f"runs/own_task/{name}", modules=[BackwardsPlusOne]) for name in results}
best = {curve.label: int(curve.values["exact_match"].mean(axis=1).argmax()) for curve in curves}
for name, run in loaded.items():
    answer = runs.answer_example(run, 20, seed=best[name])
    print(name)
    print("  input ", *answer.inputs)
    print("  answer", *answer.given)
    print("  right ", *("x" if hit else "." for hit in answer.hits))

# %% [markdown]
# What the pointers do on such an example, answer by answer from top to bottom: one of them starts at the end of the
# input and walks back.

# %%
run = loaded["pointers"]
seen = traces.collect(run.experiment.bound_model, run.seed_params(best["pointers"]), runs.example_batch(task, 14))
plots.plot_pointers(seen, 0)

# %% [markdown]
# ## From the command line
#
# Save the class and an `experiment` in a file, such as `mytask.py`. Then `lenmem train mytask.py` trains it, and other
# commands take `--modules mytask.py`. Tasks whose answers have another length, end with an end symbol, or are real
# numbers differ in their `Spec` and their masks; `lenmem/tasks/lantm.py` and `lenmem/tasks/dnc/` have examples of each.
