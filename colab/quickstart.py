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
# # Quickstart: does it still work on longer sequences?
#
# A network learns to copy sequences of up to 16 tokens, and is tested on up to 32. This takes less than a minute on
# two CPU cores. The times below are those of a busy machine.
#
# **GPU or TPU.** The notebook needs no changes. In Colab choose *Runtime > Change runtime type* before the first cell;
# JAX is preinstalled there for the chosen accelerator. Elsewhere install `lenmem[cuda13]` or `lenmem[tpu]`. The last
# line of the first cell shows the device, and warns if a GPU is not used.

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
from rich import print

import lenmem
from lenmem.evaluation import plots, tables, traces

print(f"lenmem {lenmem.__version__}")

# %% [markdown]
# ## The experiment
#
# A task, a model and a training: the configuration of `lenmem train quickstart`. All of them are dataclasses;
# `dataclasses.replace` changes a field.

# %%
experiment = lenmem.load_config("quickstart")
steps = int(os.environ.get("LENMEM_STEPS", experiment.training.steps))
training = dataclasses.replace(experiment.training, steps=steps, log_every=max(1, steps // 5))
experiment = dataclasses.replace(experiment, training=training)
print(experiment)

# %% [markdown]
# ## Train
#
# Three seeds are trained in one compiled program, which also draws its data. The first line takes longest, since the
# program is compiled.


# %%
def report(entry):
    """One line of progress."""
    losses = " ".join(f"{loss:.4f}" for loss in entry["loss"])
    print(f"step {entry['step']:5}  losses {losses}  {entry['seconds']:.0f} s")


result = lenmem.train(experiment, report=report)

# %% [markdown]
# ## Measure
#
# Accuracy at every length, with the training range shaded: the median over seeds, and the range of the seeds. *Token
# accuracy* counts tokens, *exact match* counts whole answers.

# %%
curve = lenmem.measure(result, label="LANTM")
print(tables.curve_table([curve], rows=8))

# %%
plots.plot_curves([curve])

# %% [markdown]
# ## Look into the memory
#
# This network keeps its memory in a plane. One example of 12 tokens: where it wrote, how strongly, and where it read
# while answering. A network that has learned to copy leaves a trail and follows it again from its start. The picture
# shows the seed with the best curve; several seeds are trained because some fail.

# %%
task = experiment.task
example = task.sample(jax.random.key(2), 12, 12)
batch = jax.tree.map(lambda x: x[None], example)
best = curve.values["exact_match"].mean(axis=1).argmax()
params = jax.tree.map(lambda x: x[best], result.params)
seen = traces.collect(experiment.bound_model, params, batch)
plots.plot_key_space(seen, 0, names=traces.token_names(task.vocabulary))

# %% [markdown]
# ## Next steps
#
# Train another network on the task: `lenmem.models.names()` lists the networks, and
#
# ```python
# other = dataclasses.replace(experiment, model=lenmem.models.make("lstm"))
# ```
#
# is trained in the same way. Other notebooks cover one paper each in detail; the one on Lie access ends with a model of
# your own.
