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
# A run uses all devices of its machine, and several processes can train one run together. The experiment
# stays the same. You can try this on a laptop, since JAX can split a CPU into several virtual devices. They speed
# up only large networks (`--training.devices`); here they show what happens on a machine with two GPUs. It takes about
# two minutes on one CPU core. The times below are those of a busy machine.

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
import json
import os
import signal
import socket
from pathlib import Path

import lenmem
from lenmem.evaluation import plots

# Optimiser steps of every training below.
STEPS = int(os.environ.get("LENMEM_STEPS", "40"))

# %% [markdown]
# ## Two devices
#
# Each command starts its own process, which is told to see two devices. The batch is distributed over them: of 32
# examples each gets 16. Progress and errors of a command go to a file such as `both.log`. A command does not train into
# the directory of a finished run: to run the notebook again, delete `runs`.

# %%
options = f"copy --model gru --task.vocabulary 8 --task.train-lengths 1 4 --training.steps {STEPS}"
options += f" --training.seeds 2 --training.log-every {STEPS // 2} --training.optimizer.learning-rate 0.03"
os.environ["OPTIONS"] = options  # for the commands below
os.environ["JAX_PLATFORMS"] = "cpu"  # theirs too: only a CPU can be split
os.environ["TWO"] = (
    "--xla_force_host_platform_device_count=2"
    " --xla_cpu_collective_call_terminate_timeout_seconds=1800"  # devices that share a core wait for each other
)

# %% language="bash"
# export XLA_FLAGS="$TWO"
# lenmem train $OPTIONS --directory runs/both 2> both.log

# %% [markdown]
# ## One device
#
# The same training on one of them.

# %% language="bash"
# lenmem train $OPTIONS --training.devices 1 --directory runs/one 2> one.log

# %% [markdown]
# The draws do not depend on the number of devices, so both networks have seen the same examples. Sums over a batch are
# added in another order, so the last digits of the losses differ, and training makes the difference larger.


# %%
def losses(name):
    """The losses of a run, from the lines that it has written."""
    return [json.loads(line)["loss"][0] for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]


for name in ("both", "one"):
    print(f"{name:9}", *losses(name))

# %%
curves = [lenmem.measure(lenmem.load(f"runs/{name}"), label=f"trained on {name}") for name in ("both", "one")]
plots.plot_curves(curves)

# %% [markdown]
# ## Another number of devices
#
# Checkpoints do not know on how many devices they were made. This notebook sees one device. It trains here, gets a
# Ctrl-C in the middle, and the run is continued on two.


# %%
def interrupt(entry):
    """Ctrl-C in the middle of the training."""
    if entry["step"] >= STEPS // 2:
        signal.raise_signal(signal.SIGINT)


stopped = lenmem.train(lenmem.load("runs/both").experiment, directory="runs/moved", report=interrupt)
print("stopped at step", stopped.step, "of", STEPS)

# %% language="bash"
# export XLA_FLAGS="$TWO"
# lenmem train --resume runs/moved 2> moved.log

# %%
for name in ("both", "moved"):
    print(f"{name:9}", *losses(name))

# %% [markdown]
# ## Two processes
#
# On a TPU pod, under Slurm and under Open MPI processes find each other, and `--distributed` is all that is needed
# (`scripts/launch_tpu_pod.sh`, `scripts/launch_slurm.sh`). Elsewhere three environment variables identify them. Here
# two processes of one device each train one run: the first one writes, and a signal to either stops both after the same
# step.

# %%
with socket.socket() as free:
    free.bind(("localhost", 0))
    os.environ["PORT"] = str(free.getsockname()[1])

# %% language="bash"
# export JAX_COORDINATOR_ADDRESS=localhost:$PORT JAX_NUM_PROCESSES=2
# JAX_PROCESS_ID=1 lenmem train $OPTIONS --distributed --directory runs/processes > second.log 2>&1 &
# JAX_PROCESS_ID=0 lenmem train $OPTIONS --distributed --directory runs/processes 2> first.log
# wait

# %%
for name in ("both", "processes"):
    print(f"{name:9}", *losses(name))

# %% [markdown]
# ## Before you rent one
#
# `lenmem compile quickstart --topologies v5e:2x2 h100` compiles a training for devices that are not there, and prints
# their memory, operations and collectives. It needs the compilers: `pip install 'lenmem[aot]'`, 1.4 GB.
