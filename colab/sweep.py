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
# # A sweep
#
# A sweep trains an experiment with all combinations of values for some of its fields. Combinations that differ only in
# numbers, such as rates and seeds, train in one program. This tutorial looks for the learning rate of a Lie-access
# memory. It takes about a minute on one CPU core.

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
from pathlib import Path

from IPython.display import Image
from rich.console import Console

import lenmem
import lenmem.sweep

# Optimiser steps of every training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "400"))

# %% [markdown]
# ## What is swept
#
# Two fields, by their names on the command line: the learning rate, and the norm at which gradients are clipped. With
# two seeds for each of six combinations these are twelve networks. Copying up to 8 symbols is enough to tell good rates
# from bad ones.

# %%
task = lenmem.tasks.make("copy", vocabulary=16, train_lengths=(1, 8))
adam = lenmem.Optimizer("adam", learning_rate=1e-2, schedule=lenmem.training.Cosine(warmup=0.1), clip_norm=1.0, b2=0.9)
training = lenmem.Training(steps=STEPS, batch_size=32, seeds=2, optimizer=adam)
model = lenmem.models.make("lantm", hidden_size=32, read_gate_bias=0.0, forget_bias=0.0)
experiment = lenmem.Experiment(task, model, training, lenmem.Evaluation(lengths=(4, 8, 12, 16), samples=32))
over = {
    "training.optimizer.learning_rate": (3e-3, 1e-2, 3e-2),
    "training.optimizer.clip_norm": (0.1, 1.0),
}
outcomes = lenmem.sweep.sweep(experiment, over, Path("runs/sweep"))

# %% [markdown]
# ## The table
#
# Medians over the seeds. The rule for choosing the best combination is below the table. It uses a validation split
# at the training lengths, because the test set must not be used for selection.

# %%
Console(width=150).print(lenmem.sweep.sweep_table(outcomes))

# %% [markdown]
# ## The picture
#
# Every dot is a seed, every bar the median of a combination.

# %%
Image("runs/sweep/sweep.png")

# %% [markdown]
# ## Each is a run
#
# A combination can be opened like any other run, and a sweep that was stopped continues with the same call. The same
# from a shell:
#
# ```sh
# lenmem sweep quickstart --over training.optimizer.learning_rate 0.003 0.01 0.03 --over seed 2
# ```

# %%
print(lenmem.sweep.best(outcomes).combination.values)
print(*sorted(path.name for path in Path("runs/sweep").iterdir()), sep="\n")
