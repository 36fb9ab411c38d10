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
    fit, and 2 if one does not compile.
    """

    topologies: tuple[str, ...] = ("v5e:2x2",)
    """Topologies to compile for."""
    dump: Path | None = None
    """Directory of the optimised programs, with a folder for each topology."""


def compile_ahead(arguments: list[str]) -> None:
    """`lenmem compile CONFIG --topologies v5e:2x2 ...` or `lenmem compile --all --topologies ... --json FILE`."""
    from lenmem import aot
    from lenmem.compiled import described

    jax.config.update("jax_platforms", "cpu")  # libtpu and the CUDA plugin compile; they are not to look for devices.
    if "--all" in arguments:
        chosen = parse(CompileAll, "compile", arguments)
        aot.compile_all(aot.at_paper_scale(), chosen.topologies, chosen.json, say)
        return
    arguments = ["--topologies" if word == "--topology" else word for word in arguments]
    about = training_ahead(arguments, "compile", "CONFIG | TASK --model MODEL", Compile)
    options = parse(Compile, f"compile {about.words}", about.options, **about.experiment)
    if options.json != Compile.json:
        raise ValueError("--json goes with --all")
    targets = {name: aot.target_named(name) for name in options.topologies}
    fit = True
    for name, target in targets.items():
        dump = None if options.dump is None else options.dump / name.replace(":", "-")
        with progress.track(f"compiling for {name}"):
            compiled = aot.compile_experiment(experiment_of(options), target, dump=dump)
        say(described(name, compiled))
        fit &= all(one.fits for one in compiled.values())
    if not fit:
        fail("a program needs more memory than a device has", 1)
