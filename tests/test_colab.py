"""Notebooks agree with their scripts, store the outputs of their code, run, and install lenmem first."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
from pathlib import Path

import jax
import pytest

jupytext, nbclient, nbformat = map(pytest.importorskip, ("jupytext", "nbclient", "nbformat"))
pytest.importorskip("ipykernel")

COLAB = Path(__file__).parents[1] / "colab"
SCRIPTS = sorted(COLAB.glob("*.py"))
runner = runpy.run_path(str(COLAB.parent / "scripts/run_notebooks.py"))


def test_every_notebook_has_a_script():
    assert [path.stem for path in sorted(COLAB.glob("*.ipynb"))] == [path.stem for path in SCRIPTS]
    assert SCRIPTS


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script(path):
    of_script, of_notebook = (
        [(cell.cell_type, cell.source) for cell in jupytext.read(file).cells]
        for file in (path, path.with_suffix(".ipynb"))
    )
    assert of_notebook == of_script, f"run: jupytext --to ipynb --update {path}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_code_gave(path):
    """The outputs are stored with a hash of the code, and took little enough for three minutes on two cores."""
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    assert runner["fresh"](path), f"run: python scripts/run_notebooks.py colab/{path.name}"
    assert 0 < runner["ran"](notebook)["seconds"] < 270
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) > 0
    assert path.with_suffix(".ipynb").stat().st_size < 1_000_000


def test_outputs_of_other_code_are_seen(tmp_path):
    """A notebook is run again if code changes, not if text does; an error stores nothing."""
    script = tmp_path / "own.py"
    script.write_text("# %% [markdown]\n# # Own\n\n# %%\nprint(6 * 7)\n")
    assert runner["run"](script) > 0
    stored = script.with_suffix(".ipynb")
    (printed,) = nbformat.read(stored, as_version=4).cells[1].outputs
    assert printed["text"] == "42\n" and runner["fresh"](script)
    script.write_text(script.read_text().replace("# Own", "# Mine"))
    assert runner["fresh"](script)
    script.write_text(script.read_text().replace("6 * 7", "6 / 0"))
    assert not runner["fresh"](script)
    before = stored.read_text()
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ZeroDivisionError"):
        runner["run"](script)
    assert stored.read_text() == before


def test_pieces_of_a_stream_are_one_output():
    """Of one stream without another output between; a stored output with pieces would be shown as several blocks."""
    stream, data = nbformat.v4.new_output, nbformat.v4.new_output("display_data", {"text/plain": "x"})
    pieces = [
        stream("stream", name=name, text=text) for name, text in (("stdout", "a"), ("stdout", "b\n"), ("stderr", "c"))
    ]
    found = runner["joined"]([*pieces, data, stream("stream", name="stderr", text="d")])
    assert [output.get("text", "data") for output in found] == ["ab\n", "c", "data", "d"]


# The first cell -------------------------------------------------------------------------------------------------------


def first_cell(path: Path) -> str:
    """The source of a script's first cell of code."""
    return next(cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code")


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Runs the first cell in an empty directory without lenmem; returns the arguments for pip, whose exit status is
    0."""
    monkeypatch.chdir(tmp_path)
    installed: dict[str, bool] = {}
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: find("absent") if name == "lenmem" else installed.get(name)
    )
    given = []

    def run(arguments, **options):
        if arguments[1:4] != ["-m", "pip", "install"]:
            return command(arguments, **options)
        given.extend(argument for argument in arguments[4:] if argument != "--quiet")
        return subprocess.CompletedProcess(arguments, status)

    command, status = subprocess.run, 0
    monkeypatch.setattr(subprocess, "run", run)

    def execute(filled_in: str = "", *, plugins: tuple[str, ...] = (), pip: int = 0) -> list[str]:
        nonlocal status
        given.clear()
        status = pip
        installed.clear()
        installed.update(dict.fromkeys(plugins, True))
        cell = first_cell(SCRIPTS[0])
        assert cell.count('LENMEM = ""') == 1
        exec(compile(cell.replace('LENMEM = ""', f"LENMEM = {filled_in!r}"), "the first cell", "exec"), {})
        return list(given)

    return execute


def test_the_first_cell_is_the_same_everywhere():
    assert len({first_cell(path) for path in SCRIPTS}) == 1


def test_nothing_filled_in_says_what_to_fill_in(fresh):
    with pytest.raises(ValueError, match=r"Fill in LENMEM at the top of this cell: an address such as .* or the path"):
        fresh()


@pytest.mark.parametrize("source", ["../lenmem", "git+https://github.com/someone/lenmem"])
def test_what_is_filled_in_is_installed(fresh, source, tmp_path):
    """Even beside a wheel."""
    (tmp_path / "lenmem-0.1.0-py3-none-any.whl").touch()
    assert fresh(source) == [source]


def test_a_wheel_beside_the_notebook_is_installed(fresh, tmp_path):
    """The latest of several."""
    for age, version in ((1, "0.10.0"), (2, "0.2.0")):
        wheel = tmp_path / f"lenmem-{version}-py3-none-any.whl"
        wheel.touch()
        os.utime(wheel, (1e9 - age, 1e9 - age))
    (tmp_path / "other-1.0-py3-none-any.whl").touch()
    assert fresh() == ["lenmem-0.10.0-py3-none-any.whl"]


def test_what_pip_refuses_is_named(fresh):
    with pytest.raises(ValueError, match=r"could not install '\.\./nowhere'.*LENMEM"):
        fresh("../nowhere", pip=1)


def test_the_plugin_of_a_gpu_is_renewed_with_jax(fresh):
    """pip would keep the plugin of the older JAX, which the newer one ignores."""
    assert fresh("../lenmem", plugins=("jax_cuda12_plugin",)) == ["../lenmem", "jax[cuda12]"]
    assert fresh("../lenmem", plugins=("libtpu",)) == ["../lenmem", "jax[tpu]"]


@pytest.mark.parametrize("listed, warned", [("GPU 0: NVIDIA L4 (UUID: 1)", True), ("", False), (None, False)])
def test_an_unused_gpu_is_warned_of(fresh, tmp_path, monkeypatch, capsys, listed, warned):
    """If JAX has only the CPU, it depends on whether `nvidia-smi` exists and finds a GPU."""
    folder = tmp_path / "bin"
    folder.mkdir()
    if listed is not None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{listed}'\n")
        (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH'] if listed is not None else ''}")
    fresh("../lenmem")
    printed = capsys.readouterr().out
    assert f"jax {jax.__version__} on {jax.devices()[0]}" in printed
    assert ("WARNING: JAX does not use the GPU of this machine" in printed) == warned
    assert (listed or "") in printed or not warned


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("LENMEM_STEPS", "8")
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    nbclient.NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture was shown"
