"""The suite on several workers: tests that share compiled programs and fixtures run in one process."""

from __future__ import annotations

import pytest

from tests.conftest import group

TURNS = 6
seen: list[int] = []


@pytest.mark.parametrize("turn", range(TURNS))
def test_a_file_is_one_workers(turn, request):
    seen.append(turn)
    selected = [item for item in request.session.items if item.path == request.node.path and "one_workers" in item.name]
    if len(selected) == TURNS:
        assert seen == list(range(turn + 1)), "another worker ran the others"


def test_the_contract_is_shared_out_model_by_model():
    contract = "tests/models/test_contract.py"
    for name in ("test_contract[dnc-padding]", "test_contract[dnc-finite]", "test_it_learns[dnc]"):
        assert group(f"{contract}::{name}") == f"{contract}[dnc]"
    for name in ("test_contract[dnc_improved-padding]", "test_it_learns[dnc_improved]"):
        assert group(f"{contract}::{name}") == f"{contract}[dnc_improved]"
    for name in (
        "test_a_flawed_model_fails[jit-check_capacity_and_traces]",
        "test_every_named_model_is_under_contract",
    ):
        assert group(f"{contract}::{name}") == contract
    assert group("tests/test_cli.py::test_typed_inputs[copy-3 127]") == "tests/test_cli.py"
