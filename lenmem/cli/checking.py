"""The verb `check`: the requirements of a task and a network, tried on a few examples."""

from __future__ import annotations

import dataclasses

from lenmem import contract
from lenmem.cli.terminal import say
from lenmem.cli.training import Asked, experiment_of
from lenmem.cli.words import training_ahead
from lenmem.options import parse
from lenmem.tasks.contract import broken


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check(Asked):
    """Try what lenmem requires of a task and a network on a few examples.

    It is meant for classes of your own, and takes about as long as the
    compilation of a training. It prints a line for each requirement: ok, or
    BROKEN with the reason. The exit status is 1 if one is broken.
    """


def check(arguments: list[str]) -> None:
    """`lenmem check CONFIG` or `lenmem check TASK --model MODEL`."""
    about = training_ahead(arguments, "check", "CONFIG | TASK --model MODEL", Check)
    findings = contract.check(experiment_of(parse(Check, f"check {about.words}", about.options, **about.experiment)))
    say(contract.report(findings))
    if any(broken(findings)):
        raise SystemExit(1)
