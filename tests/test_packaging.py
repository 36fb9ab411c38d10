"""The package works without the clone: named configurations, the papers' numbers and types are in the wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import lenmem
from lenmem import configs, papers
from lenmem.zoo import shelf

ROOT = Path(__file__).parent.parent


def test_what_is_exported_exists_and_is_sorted_out():
    """`__all__` holds no name twice and none that is missing."""
    assert len(set(lenmem.__all__)) == len(lenmem.__all__)
    assert all(hasattr(lenmem, name) for name in lenmem.__all__)


def test_publishing_is_documented_as_it_is():
    """PyPI trusts a workflow by its file name and its job's environment; the page must give the same ones."""
    page = (ROOT / "docs/publishing.md").read_text()
    jobs = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]
    assert "| workflow name | `publish.yml` |" in page
    trusted = {name: job["environment"] for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert trusted == {"pypi": "pypi", "testpypi": "testpypi"}
    assert "| environment name | `pypi` |" in page and "the environment `testpypi`" in page
    assert all(jobs[name]["needs"] == "build" for name in trusted)


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lenmem.__version__
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert newest == f"## {lenmem.__version__} ({citation['date-released']})"


def test_the_workflows_call_the_steps_of_ci():
    """Together they run each step, but for the newest Python: theirs are fixed."""
    script = ROOT / ".ci/run"
    known = re.search(r"^steps=\((.*)\)$", script.read_text(), re.MULTILINE)
    assert known is not None
    called = set()
    for name in ("tests.yml", "docs.yml"):
        for job in yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"].values():
            matrix = job.get("strategy", {}).get("matrix", {}).get("step", [])
            for step in (step["run"] for step in job["steps"] if "run" in step):
                if step.startswith("bash .ci/run "):
                    called |= set(matrix) if "matrix.step" in step else {step.removeprefix("bash .ci/run ")}
    assert called == set(known[1].split()) - {"newest"}


def test_ci_names_its_steps():
    run = subprocess.run(["bash", ROOT / ".ci/run", "lnt"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == ".ci/run: there is no step lnt; the steps are readme processor slow docs lint newest\n"


@pytest.mark.slow
def test_the_wheel_works_without_the_clone(tmp_path: Path):
    """sdist, then a wheel from it, installed into a fresh environment and used from an empty directory."""
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    known = os.environ | {"GITHUB_REPOSITORY": "Owner/lenmem"}  # as in a workflow
    subprocess.run(build, check=True, capture_output=True, env=known)
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    (wheel,) = (tmp_path / "dist").glob("*.whl")

    with tarfile.open(sdist) as archive:
        sources = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "lenmem/types.py", "configs/lantm/copy.py", "tests/conftest.py"} <= sources
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
        metadata = archive.read(f"lenmem-{lenmem.__version__}.dist-info/METADATA").decode()
    assert "Project-URL: Source, https://github.com/Owner/lenmem\n" in metadata
    assert {"lenmem/py.typed", "lenmem/_configs/lantm/_recipe.py"} <= shipped
    assert {f"lenmem/papers/{paper}.json" for paper in papers.names()} <= shipped
    assert {f"lenmem/_configs/{name}.py" for name in configs.names()} <= shipped
    travelling = {entry.name for entry in shelf.travelling(shelf.entries().values())}
    assert {f"lenmem/_zoo/{name}.safetensors" for name in travelling} <= shipped
    assert len([name for name in shipped if name.startswith("lenmem/_zoo/")]) == len(travelling) + 1
    assert {name.split("/")[0] for name in shipped} == {"lenmem", f"lenmem-{lenmem.__version__}.dist-info"}
    assert not [name for name in shipped if "__pycache__" in name]

    # The new environment can use the dependencies of this one, but not an editable lenmem in it: a .pth file only adds
    # a directory and does not run the .pth files inside.
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)

    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def output(*command: str) -> str:
        run = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    assert site in Path(output(str(python), "-c", "import lenmem; print(lenmem.__file__)").strip()).parents
    listed = output(str(tmp_path / "venv/bin/lenmem"), "list")
    assert all(name in listed for name in configs.names())
    assert "steps" in output(str(tmp_path / "venv/bin/lenmem"), "train", "lantm/copy", "--help")
    assert "lantm/reverse-lantm-L" in output(str(tmp_path / "venv/bin/lenmem"), "zoo", "lantm/reverse")
    assert "right" in output(str(tmp_path / "venv/bin/lenmem"), "predict", "zoo:panm/dyck_2", "--length", "4")
    assert not list(empty.iterdir())
