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
# # Several devices
#
# A run uses all devices of its machine, and several processes can train one run together. Nothing in an experiment
# changes for that. A laptop can try it, since JAX can split a CPU into several virtual devices. They make nothing
# faster, but they show what happens on a machine with four GPUs. It takes about two minutes on two CPU cores.

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
    # A newer JAX cannot use the CUDA plugin of an older one, and pip does not upgrade the plugin unless asked.
    plugins = [f"jax[{cuda}]" for cuda in ("cuda12", "cuda13") if importlib.util.find_spec(f"jax_{cuda}_plugin")]
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

import lenmem
from lenmem.evaluation import plots

# Optimiser steps of every training below.
STEPS = os.environ.get("LENMEM_STEPS", "200")

# %% [markdown]
# ## Four devices
#
# Each command starts its own process, which is told to see four devices. The first line says how the batch is
# distributed: 32 examples are 8 on each device.

# %%
options = f"copy --model lantm --task.vocabulary 8 --task.train-lengths 1 8 --training.seeds 2 --training.steps {STEPS}"
four = "XLA_FLAGS=--xla_force_host_platform_device_count=4"
# !{four} lenmem train {options} --directory runs/four

# %% [markdown]
# ## One device
#
# The same training on one of them.

# %%
# !{four} lenmem train {options} --training.devices 1 --directory runs/one

# %% [markdown]
# The draws do not depend on the number of devices, so both networks have seen the same examples. Sums over a batch are
# added in another order, and the last bits of the losses differ.

# %%
for name in ("four", "one"):
    print(name, lenmem.load(f"runs/{name}").experiment.training.steps, "steps")
# !tail -n 1 runs/four/metrics.jsonl
# !tail -n 1 runs/one/metrics.jsonl

# %%
curves = [lenmem.measure(lenmem.load(f"runs/{name}"), label=f"{name} device(s)") for name in ("four", "one")]
plots.plot_curves(curves)

# %% [markdown]
# ## Another number of devices
#
# A run that was stopped, or is to be trained for longer, can be continued on any number of devices: checkpoints do not
# know where they were made.

# %%
# !lenmem train --resume runs/four --training.steps {int(STEPS) + 50} | tail -n 3

# %% [markdown]
# ## Two processes
#
# On a TPU pod, under Slurm and under Open MPI processes find each other, and `--distributed` is all that is needed
# (`scripts/launch_tpu_pod.sh`, `scripts/launch_slurm.sh`). Elsewhere three variables say who they are. Here are two
# processes of one device each, which train one run: the first one writes, and a signal to either stops both after the
# same step.

# %%
together = f"lenmem train {options} --distributed --directory runs/two"
where = "JAX_COORDINATOR_ADDRESS=localhost:12357 JAX_NUM_PROCESSES=2"
# !{where} JAX_PROCESS_ID=1 {together} > second.log 2>&1 & {where} JAX_PROCESS_ID=0 {together} | tail -n 3; wait
# !tail -n 1 runs/two/metrics.jsonl

# %% [markdown]
# ## Before you rent one
#
# `lenmem compile quickstart --topologies v5e:2x2 h100` compiles a training for devices that are not there, and prints
# their memory, operations and collectives.
