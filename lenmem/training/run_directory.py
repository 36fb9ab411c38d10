"""The directory of a run: metrics, checkpoints and snapshots.

<directory>/metrics.jsonl       a line for every compiled call
<directory>/checkpoints/<step>  complete states, from which training can continue
<directory>/snapshots/<step>    parameters only, from the middle of training
<directory>/.lock               locked while the run is trained
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from lenmem.errors import nearest
from lenmem.files import is_locked, make_directory, write_whole
from lenmem.serialize import to_plain
from lenmem.training import checkpoint, processes
from lenmem.training.configuration import TrainableExperiment
from lenmem.training.environment import describe_environment
from lenmem.training.resume import code_of, experiment_differences
from lenmem.training.step import State, initial_parameters, initial_state, selected
from lenmem.types import PyTree

try:
    import fcntl
except ImportError as error:
    raise ImportError("lenmem.training needs fcntl, which Windows does not have; use WSL there") from error

CHECKPOINTS, SNAPSHOTS, METRICS = "checkpoints", "snapshots", "metrics.jsonl"
LOCK = ".lock"
CURVE = "curve.json"
"""The file that a measured run has; it is written last."""


def holds_run(directory: Path) -> bool:
    """Whether a run was started in the directory, or its snapshots are there."""
    saved = checkpoint.steps(directory / CHECKPOINTS) or checkpoint.steps(directory / SNAPSHOTS)
    return bool(saved) or (directory / METRICS).exists()


def numbered(directory: Path) -> Iterator[Path]:
    """`directory`, then the same with -2, -3, ... appended."""
    yield directory
    place = directory if directory.name else directory.absolute()  # `.` has no name
    for number in itertools.count(2):
        yield place.with_name(f"{place.name}-{number}")


def fresh_directory(directory: Path) -> Path:
    """`directory`, or the first of `directory`-2, -3, ... with neither a run nor a saved curve, so that none is
    overwritten, and no curve is taken for that of another network. A run that is just starting counts, too."""
    return next(p for p in numbered(directory) if not (holds_run(p) or (p / CURVE).exists() or is_locked(p / LOCK)))


def without_checkpoint(directory: Path) -> str:
    """That the run in a directory has no checkpoint, and what to do."""
    return (
        f"{directory} has no checkpoint: it stopped before the first one, which stores the experiment; start it again "
        f"with its configuration: lenmem train CONFIG --resume --directory {directory}"
    )


def all_diverged(directory: Path) -> bool:
    """Whether every seed of the run in the directory diverged, according to its metrics."""
    history = read_metrics(directory)
    return bool(history) and not any(alive_in(history, history[-1]["step"], seeds=1))


def read_metrics(directory: Path, step: int | None = None) -> list[dict[str, Any]]:
    """The history of the run in a directory, up to `step`. An incomplete last line is left out."""
    history: list[dict[str, Any]] = []
    path = directory / METRICS
    try:
        lines = path.read_text().splitlines() if path.exists() else []
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    for line in lines:
        try:
            history.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return [entry for entry in history if step is None or entry["step"] <= step]


def write_metrics(directory: Path, history: list[dict[str, Any]]) -> None:
    """Writes metrics as `read_metrics` reads them. The file is replaced atomically."""
    write_whole(directory / METRICS, "".join(json.dumps(entry) + "\n" for entry in history).encode())


def folder_of(directory: str | os.PathLike[str], step: int | None = None) -> Path:
    """The folder of a run that contains `step`: its checkpoints, or its snapshots from the middle of training.

    Raises ValueError if there is no run, or if `step` was not saved.
    """
    directory = Path(directory)
    checkpoints, snapshots = directory / CHECKPOINTS, directory / SNAPSHOTS
    if not checkpoints.is_dir() and not snapshots.is_dir():
        if holds_run(directory):
            raise ValueError(without_checkpoint(directory))
        if directory.is_dir():
            raise ValueError(f"{directory} is not a run: it has no folder {CHECKPOINTS}")
        if directory.exists():
            raise ValueError(f"{directory} is not a run: it is a file")
        places = [place for place in (directory.parent, Path("runs")) if place.is_dir()]
        known = sorted(str(run) for place in places for run in place.iterdir() if (run / CHECKPOINTS).is_dir())
        raise ValueError(f"{directory} is not a run: there is no such directory.{nearest(str(directory), known)}")
    if step is None or step in checkpoint.steps(checkpoints):
        return checkpoints
    if step in checkpoint.steps(snapshots):
        return snapshots
    known = sorted({*checkpoint.steps(checkpoints), *checkpoint.steps(snapshots)})
    raise ValueError(f"{directory} has nothing of step {step}; it has {', '.join(map(str, known))}")


def abstract_state(experiment: TrainableExperiment) -> State:
    """Structure, shapes and dtypes of the state in a checkpoint of the experiment."""
    training = experiment.training
    return initial_state(
        experiment.bound_model,
        experiment.task,
        training.transformation,
        jax.random.split(jax.random.key(0), training.seeds),
        **training.state_options,
        abstract=True,
    )


def abstract_parameters(experiment: TrainableExperiment) -> PyTree:
    """Structure, shapes and dtypes of the parameters of all seeds."""
    keys = jax.random.split(jax.random.key(0), experiment.training.seeds)
    initial = functools.partial(initial_parameters, experiment.bound_model, experiment.task)
    return jax.eval_shape(jax.vmap(initial), keys)


def read_parameters(
    experiment: TrainableExperiment, directory: str | os.PathLike[str], step: int | None = None
) -> tuple[PyTree, np.ndarray, int]:
    """(params [S, ...], alive bool[S], step) from a checkpoint (the selected ones) or a snapshot of a run directory.

    Nothing else of the state is read. Raises `checkpoint.CheckpointError` if it is missing or damaged.
    """
    folder, params = folder_of(directory, step), abstract_parameters(experiment)
    seeds = experiment.training.seeds
    if folder.name == SNAPSHOTS:
        assert step is not None
        snapshot, _ = checkpoint.restore(folder, {"params": params}, step)
        alive = alive_in(read_metrics(Path(directory), step), step, seeds)
        return snapshot["params"], np.array(alive, bool), step
    members = {"params": params, "alive": jax.ShapeDtypeStruct((seeds,), bool)}
    if experiment.training.selection != "last":
        members |= {"best": params, "best_score": jax.ShapeDtypeStruct((seeds,), np.float32)}
    like = {"step": jax.ShapeDtypeStruct((), np.int32), "members": members}
    state, _ = checkpoint.restore(folder, like, step, partial=True)
    members = state["members"]
    chosen = selected(members["params"], members.get("best", ()), members.get("best_score"))
    return chosen, np.asarray(members["alive"]), int(state["step"])


def data_changed(manifest: Mapping[str, Any], experiment: TrainableExperiment) -> bool:
    """Whether the data file of the experiment is another one than that of the run with this manifest."""
    now = experiment.task.data_hash
    return now is not None and manifest.get("data", now) != now


def code_changed(manifest: Mapping[str, Any], experiment: TrainableExperiment) -> bool:
    """Whether the user's own classes had other code in the run with this manifest; False if that is not known."""
    return "code" in manifest and manifest["code"] != code_of(experiment)


def alive_in(history: Any, step: int, seeds: int) -> list[bool]:
    """The seeds that were alive at a step, according to the metrics; all seeds if there is no line for the step."""
    known = [entry["alive"] for entry in history or () if entry["step"] <= step and "alive" in entry]
    return known[-1] if known else [True] * seeds


class Recorder:
    """Writes the metrics and states of a training to the directory of its run, if there is one, and locks the
    directory.

    `about` is further data for the manifest. A run can only be resumed if this data is the same.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        experiment: TrainableExperiment,
        key: jax.Array,
        *,
        resume: bool = False,
        tensorboard: bool = False,
        about: Mapping[str, Any] = MappingProxyType({}),
    ):
        if resume and directory is None:
            raise ValueError("resume needs the directory of a run")
        self.path = None if directory is None else Path(directory)
        self.experiment, self.resume, self.tensorboard = experiment, resume, tensorboard
        self.about = {"key": np.asarray(jax.random.key_data(key)).tolist(), **about}
        if experiment.task.data_hash is not None:
            self.about["data"] = experiment.task.data_hash
        if (code := code_of(experiment)) is not None:
            self.about["code"] = code
        self.start: int | None = None
        self.opened = ExitStack()
        self.events: Any = None

    def __enter__(self) -> Recorder:
        if self.path is not None:
            # First, since it may raise an error: after it the directory would stay locked.
            self.manifest = {"experiment": to_plain(self.experiment), "environment": describe_environment()}
            self.checkpoints = checkpoint.Writer(self.path / CHECKPOINTS, self.experiment.training.keep_checkpoints)
            start = processes.on_first(self._claim)
            self.start = None if start < 0 else start
        return self

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint was there at the start, or was written since."""
        return self.start is not None or (self.path is not None and self.checkpoints.step >= 0)

    def _claim(self) -> int:
        """Locks the directory; returns the step from which to continue, or -1 to start from the beginning."""
        assert self.path is not None
        if self.resume and not holds_run(self.path):
            raise ValueError(f"{self.path} holds no run that could be resumed")
        make_directory(self.path)
        with ExitStack() as opened:
            lock = opened.enter_context(open(self.path / LOCK, "w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                what = f"{self.path} is in use by another run"
                raise ValueError(f"{what}; wait for it or choose another directory") from None
            found, metrics = checkpoint.latest(self.path / CHECKPOINTS), self.path / METRICS
            snapshots = [self.path / SNAPSHOTS / str(step) for step in checkpoint.steps(self.path / SNAPSHOTS)]
            if not self.resume and (found is not None or metrics.exists()):
                raise ValueError(f"{self.path} already holds a run; resume it, or choose another directory")
            if found is None and not metrics.exists() and (self.path / CURVE).exists():
                raise ValueError(f"{self.path} holds the curve of another network; choose another directory")
            if found is None and snapshots and not metrics.exists():
                raise ValueError(f"{self.path} holds the snapshots of a run, without the run; choose another directory")
            if found is None and metrics.exists():  # Killed before its first checkpoint, it begins again.
                if (self.path / CURVE).exists():
                    raise ValueError(f"{self.path}, a finished run, has lost its checkpoints; choose another directory")
                for snapshot in snapshots:
                    saved = checkpoint.read_manifest(snapshot.parent, int(snapshot.name))
                    if experiment_differences(saved["experiment"], self.experiment):
                        raise ValueError(f"{snapshot} is of another experiment; choose another directory")
                for snapshot in snapshots:
                    shutil.rmtree(snapshot)
                metrics.unlink()
            if self.tensorboard:
                try:
                    from tensorboardX import SummaryWriter
                except ImportError:
                    raise ValueError("TensorBoard events need: pip install 'lenmem[tensorboard]'") from None
                self.events = SummaryWriter(str(self.path))
                opened.callback(self.events.close)
            self.opened = opened.pop_all()
        return -1 if found is None else found

    def __exit__(self, *raised: Any) -> None:
        try:
            if self.path is not None:
                self.checkpoints.__exit__(*raised)
        finally:
            self.opened.close()

    def restore(self, state: State) -> tuple[State, list[dict[str, Any]], float]:
        """(state, history, seconds) at the start: new ones, or those of the latest checkpoint."""
        if self.start is None:
            return state, [], 0.0
        return processes.on_all(lambda: self._restored(state))

    def _restored(self, state: State) -> tuple[State, list[dict[str, Any]], float]:
        assert self.path is not None
        saved = checkpoint.read_manifest(self.path / CHECKPOINTS, self.start)
        different = experiment_differences(saved["experiment"], self.experiment)
        if not different and saved.get("key") != self.about["key"]:
            different = ["it was begun with another key"]
        if data_changed(saved, self.experiment):
            different.append("its data file has changed")
        if saved.get("numbers") != self.about.get("numbers"):
            different.append("it trains another set of combinations")
        if different:
            raise ValueError(
                f"{self.path} cannot be resumed with these settings; nothing was changed: {'; '.join(different)}"
            )
        if code_changed(saved, self.experiment):
            warnings.warn(f"{self.path} is resumed with other code of your classes than it began with", stacklevel=2)
        state, manifest = checkpoint.restore(self.path / CHECKPOINTS, state, self.start)
        # Lines after the checkpoint will be written again.
        history = read_metrics(self.path, int(state.step))
        if processes.is_first():
            write_metrics(self.path, history)
        return state, history, float(manifest["seconds"])

    def log(self, entry: dict[str, Any]) -> None:
        """Appends a line of metrics."""
        if self.path is None or not processes.is_first():
            return
        with open(self.path / METRICS, "a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.events is not None:
            for name, values in entry.items():
                if isinstance(values, list) and name != "died":
                    for seed, value in enumerate(values):
                        self.events.add_scalar(f"{name}/seed{seed}", float(value), entry["step"])

    def save(self, state: State, seconds: float, *, wait: bool = True) -> None:
        """Writes a checkpoint; without `wait`, only starts to write it."""
        if self.path is not None:
            manifest = self.manifest | self.about | {"seconds": round(seconds, 3)}
            self.checkpoints.save(int(state.step), state, manifest)
            if wait:
                self.checkpoints.wait()

    def snapshot(self, state: State, step: int) -> None:
        """Writes the parameters alone, permanently."""
        if self.path is not None:
            self.checkpoints.wait()
            manifest = self.manifest | {name: self.about[name] for name in self.about if name != "key"}
            checkpoint.save(self.path / SNAPSHOTS, step, {"params": state.members.params}, manifest)
