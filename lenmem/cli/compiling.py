"""The verb `compile`: a training compiled for devices that need not be there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax

from lenmem import progress
from lenmem.cli.terminal import fail, say
from lenmem.cli.training import Asked, experiment_of
from lenmem.cli.words import training_ahead
from lenmem.options import parse


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileAll:
    """Compile every configuration at a paper's scale, and save the compiler's figures in a file."""

    topologies: tuple[str, ...] = ("v5e:2x2", "v6e:2x2", "h100")
    """Topologies to compile for."""
    all: bool = False
    """Instead of a configuration: all of the papers' configurations except small presets, sweeps and grids."""
    json: Path = Path("results/accelerators.json")
    """The file of the records of `--all`. A recorded program is compiled again only if it has changed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compile(Asked, CompileAll):
    """Compile a training for a TPU or GPU on a machine without one.

    Common options:
      --topologies NAME NAME ...              v5e:2x2, v6e:2x2, h100, cpu and others
      --dump DIR                              keep the optimised programs
      --task NAME --model NAME                any task with any model
      --all                                   every configuration at a paper's scale
      --json FILE                             file of the records of --all

    It prints the compiler's figures: memory, operations, collectives. The
    compilers are in the extra `aot`. The exit status is 1 if a program does not
    fit, and 2 if one does not compile for another reason. With --all it is 1 if
    a program does not fit or compile.
    """

    topologies: tuple[str, ...] = ("v5e:2x2",)
    """Topologies to compile for."""
    dump: Path | None = None
    """Directory of the optimised programs, with a folder for each topology."""


def compile_ahead(arguments: list[str]) -> None:
    """`lenmem compile CONFIG --topologies v5e:2x2 ...` or `lenmem compile --all --topologies ... --json FILE`."""
    from lenmem import aot
    from lenmem.compiled import described, too_large

    jax.config.update("jax_platforms", "cpu")  # libtpu and the CUDA plugin compile; they are not to look for devices.
    if "--all" in arguments:
        chosen = parse(CompileAll, "compile", arguments)
        _require_topologies(chosen.topologies)
        records = aot.compile_all(aot.at_paper_scale(), chosen.topologies, chosen.json, say)
        if failed := aot.failures(records, chosen.topologies):
            fail("\n".join([f"{len(failed)} do not compile or fit:", *failed]), 1)
        return
    arguments = ["--topologies" if word == "--topology" else word for word in arguments]
    about = training_ahead(arguments, "compile", "CONFIG | TASK --model MODEL", Compile)
    options = parse(Compile, f"compile {about.words}", about.options, **about.experiment)
    if options.json != Compile.json:
        raise ValueError("--json goes with --all")
    _require_topologies(options.topologies)
    targets = {name: aot.target_named(name) for name in options.topologies}
    large, rejected = [], []
    for name, target in targets.items():
        dump = None if options.dump is None else options.dump / name.replace(":", "-")
        try:
            with progress.track(f"compiling for {name}"):
                compiled = aot.compile_experiment(experiment_of(options), target, dump=dump)
        except aot.CompileError as error:
            (large if isinstance(error, aot.DoesNotFitError) else rejected).append(f"{name}: {error}")
            continue
        say(described(name, compiled))
        large += filter(None, [too_large(name, compiled)])
    if large or rejected:
        fail("\n".join(large + rejected), 2 if rejected else 1)


def _require_topologies(names: tuple[str, ...]) -> None:
    if not names:
        raise ValueError("--topologies needs at least one name, such as v5e:2x2")
