"""The gallery: what it writes, and in a real browser what it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import runpy
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import lenmem
from lenmem import cli, runs
from lenmem.drawing import scene_of
from lenmem.evaluation.traces import observed
from lenmem.gallery import pack, scenes, site, views
from lenmem.ops import superposition_stack
from lenmem.runs import example_batches
from lenmem.zoo import shelf
from tests import browsing
from tests.marks import thorough

PAIR = ("zoo:panm/reverse", "zoo:panm/reverse-lstm-small")
STACK = "zoo:panm/dyck_2"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(folder of a site with a pair and a stack, what was said)."""
    folder = tmp_path_factory.mktemp("gallery") / "site"
    said: list[str] = []
    page = site.write(folder, [*PAIR, STACK], lengths=(4, 10), say=said.append)
    assert page == folder / "index.html"
    return folder, said


def network(folder: Path, slug: str) -> tuple[dict, list[dict]]:
    """What a network's file hands to the page."""
    text = (folder / "networks" / f"{slug}.js").read_text()
    assert text.startswith("gallery.add(") and text.endswith(");\n")
    about, moments = json.loads(f"[{text.removeprefix('gallery.add(').removesuffix(');' + chr(10))}]")
    return about, moments


def unpack(reference: dict, text: str) -> np.ndarray:
    """The array again, as the page reads it."""
    data = zlib.decompress(base64.b64decode(text))
    count = int(np.prod(reference["shape"]))
    kind = "<u2" if reference["bytes"] == 2 else "u1"
    codes = np.frombuffer(data, kind, count, reference["at"]).reshape(reference["shape"])
    return reference["low"] + codes * (reference["high"] - reference["low"]) / (256 ** reference["bytes"] - 1)


def fails(capsys, *arguments: str) -> str:
    """The error of a call, which is one line."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# Arrays ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fine", [False, True])
def test_packed_arrays_are_off_by_at_most_half_a_code(fine):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(3, 4)), rng.random((2, 3, 5)), np.arange(7) * 100.0, np.zeros((0, 2)), np.full(3, -2.5)]
    packer = pack.Packer()
    references = [packer.add(values, fine=fine) for values in arrays]
    for values, reference in zip(arrays, references, strict=True):
        back = unpack(reference, packer.text())
        half = (reference["high"] - reference["low"]) / (65535 if fine else 255) / 2
        assert back.shape == values.shape
        assert np.all(np.abs(back - values) <= half * 1.000001)
    assert (references[1]["low"], references[1]["high"]) == (0.0, 1.0)


def test_what_is_not_finite_is_packed_as_a_number():
    packer = pack.Packer()
    reference = packer.add(np.array([np.nan, np.inf, -np.inf, 3.0, -1.0]))
    np.testing.assert_allclose(unpack(reference, packer.text()), [0, 3, -1, 3, -1], atol=0.01)


# Views ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [2, 3])
def test_the_provenance_of_a_stack_is_that_of_its_values(kinds):
    """Against the operation of the networks: step s pushes the s-th unit vector, so that cells hold shares."""
    rng = np.random.default_rng(kinds)
    steps, deepest = 9, 5
    actions = rng.dirichlet(np.full(kinds, 0.3), size=steps)
    stack = jnp.zeros((steps + 1, steps))
    expected = []
    for step in range(steps):
        stack = superposition_stack(stack, jnp.eye(steps)[step], *map(jnp.float32, actions[step]))
        expected.append(np.asarray(stack[:deepest]))
    source, weight = views.provenance(actions, deepest)
    for step in range(steps):
        shares = expected[step][: source.shape[1]]
        np.testing.assert_allclose(weight[step], shares.max(axis=1), atol=1e-6)
        seen = shares.max(axis=1) > 0.021
        np.testing.assert_array_equal(source[step][seen], shares.argmax(axis=1)[seen])
        assert np.all(source[step][shares.max(axis=1) < 0.019] == -1)


def scene(**traces: np.ndarray):
    """A stand-in for the scene of a network of one's own that takes four steps."""
    kept = {name: np.asarray(value)[None] for name, value in traces.items()}
    naming = lambda size: (None, size)  # noqa: E731
    return SimpleNamespace(
        traces=kept, trace=lambda name: kept[name][0], first_answer=2, steps=None, inputs=list("ab"), naming=naming
    )


def test_a_trace_of_unknown_kind_is_drawn_all_the_same():
    rng = np.random.default_rng(0)
    drawn = views.views_of(
        scene(
            valid=np.ones(6, bool),
            one=rng.random(6),
            few=rng.random((6, 2, 3)),
            many=rng.random((6, 100)) * np.arange(100),
            matrix=rng.random((6, 9, 80)),
            attention=rng.random((3, 7, 7)),
            words=np.array(["a"] * 6),
        ),
        steps=4,
        static=6,
    )
    shapes = {view.title: (view.kind, view.arrays["values"].shape) for view in drawn}
    assert shapes == {
        "One": ("lines", (4, 1)),
        "Few": ("lines", (4, 6)),
        "Many": ("map", (4, 64)),
        "Matrix": ("frames", (4, 9, 64)),
        "Attention, 1 of 3": ("still", (7, 7)),
        "Attention, 2 of 3": ("still", (7, 7)),
        "Attention, 3 of 3": ("still", (7, 7)),
    }
    assert "the 64 of 100 that vary most" in next(view.facts["down"] for view in drawn if view.title == "Many")


def test_each_memory_has_its_view():
    rng = np.random.default_rng(0)
    heads = {"read_head": rng.random((4, 3)), "write_head": rng.random((4, 3)), "write_strength": rng.random(4)}
    (view,) = views.views_of(scene(**heads), 4, 4)
    assert (view.kind, view.facts["first"], set(view.arrays)) == ("space", 2, {"read", "write", "strength"})
    np.testing.assert_array_equal(view.arrays["read"], heads["read_head"])
    (view,) = views.views_of(scene(**{name: rng.random((4, 7)) for name in ("read_head", "write_head")}), 4, 4)
    assert view.arrays["read"].shape == (4, 2) and "7 dimensions" in view.title

    weights = np.zeros((4, 1, 20))
    weights[:, 0, [3, 17]] = 0.5
    memory = {"read_weights": weights, "write_weights": weights[:, 0], "usage": rng.random((4, 20))}
    drawn = views.views_of(scene(**memory, link=rng.random((4, 20, 20))), 4, 4)
    assert [view.kind for view in drawn] == ["slots", "frames"]
    assert drawn[0].facts["columns"] == ["3", "17"], "slots that are never used are left out"
    assert set(drawn[0].arrays) == {"read:read head", "write:write head", "usage:usage"}
    assert drawn[1].arrays["values"].shape == (4, 2, 2)

    position = np.eye(9)[[4, 5, 6, 7]][:, None].repeat(2, axis=1)
    position[:, 0] = np.eye(9)[4]
    drawn = views.views_of(scene(read_position=position, write_position=position, jump_target=position), 4, 4)
    assert [view.title for view in drawn] == ["Layer 1 of 1, tape 2 of 2", "Layer 1 of 1, tape 1 of 2"], "it walks"
    assert [view.facts["columns"] for view in drawn] == [["0", "1", "2", "3"], ["0"]]

    places = np.array([[3, 0], [2, 0], [1, 1], [0, 1]])
    (view,) = views.views_of(scene(head=places), 4, 4)
    assert (view.kind, view.facts["columns"]) == ("slots", ["begin", "a", "b", "end"])
    walks = np.stack([view.arrays["read:head 1"], view.arrays["read:head 2"]], axis=1)
    np.testing.assert_array_equal(walks.argmax(-1), places)
    np.testing.assert_array_equal(walks.sum(-1), 1)


# What is written ------------------------------------------------------------------------------------------------------


def test_a_site_is_whole_small_and_alone(written):
    folder, said = written
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"index.html", "style.css", "gallery.js", "vendor/uPlot.LICENSE.txt", "networks/index.js"} <= files
    assert "The MIT License" in (folder / "vendor/uPlot.LICENSE.txt").read_text()
    for path in (folder / "networks").iterdir():
        assert path.stat().st_size < 300_000
    for file in files:
        if not file.startswith("vendor/"):
            assert not re.search(r"https?:|//cdn|@import|url\(", (folder / file).read_text()), file
    page = (folder / "index.html").read_text()
    for source in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert source == "data:," or source in files
    assert said == ["panm/reverse-lstm-small sows no traces: its answers are shown, without a memory"]


def test_the_data_are_what_the_network_does(written):
    """Against `predict --length`, which pads to the length alone."""
    folder, _ = written
    about, moments = network(folder, "panm.dyck_2-stack_rnn")
    entry = shelf.find("panm/dyck_2")
    assert (about["name"], about["seed"], about["reach"]) == (entry.name, entry.best_seed, entry.reach)
    assert about["curve"]["lengths"] == sorted(entry.exact)
    run = lenmem.load(STACK)
    for moment in moments:
        alone = runs.answer_example(run, moment["length"])
        assert moment["inputs"] == alone.inputs and moment["right"] == alone.right and moment["given"] == alone.given
        assert moment["hits"] == "".join(str(int(hit)) for hit in alone.hits)
        assert moment["reads"] == moment["answers"] == list(range(moment["length"]))
        (view,) = moment["views"]
        weight = unpack(view["arrays"]["weight"], moment["data"])
        assert view["kind"] == "stack" and weight.shape[0] == moment["length"] and weight.max() > 0.2


def test_two_networks_of_a_task_get_one_question(written):
    folder, _ = written
    (first, ours), (second, theirs) = (
        network(folder, f"panm.{name}") for name in ("reverse-beyond", "reverse-lstm-small")
    )
    assert first["question"] == second["question"] != network(folder, "panm.dyck_2-stack_rnn")[0]["question"]
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine["inputs"], mine["right"]) == (other["inputs"], other["right"])
        assert mine["right"] == mine["inputs"][::-1]
        assert mine["answers"] == list(range(len(mine["right"])))
        assert [n for n in other["reads"] if n >= 0] == list(range(len(mine["inputs"])))
        assert [n for n in other["answers"] if n >= 0] == list(range(len(mine["right"])))
        pointer = unpack(mine["views"][0]["arrays"]["read:pointer 2"], mine["data"])
        np.testing.assert_array_equal(pointer.argmax(axis=1), np.arange(len(mine["inputs"]))[::-1] + 1)
    assert all(not moment["views"] for moment in theirs)


@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("lstm", "panm_reverse"),
        *thorough(("dnc", "panm_reverse"), ("dnc", "dnc_copy"), ("lantm", "parity_check")),
    ],
)
def test_every_step_is_named_by_what_the_network_reads(model, task):
    """With and without a begin symbol, with and without a delimiter."""
    task = lenmem.tasks.make(task)
    asked = lenmem.Experiment(task, lenmem.models.make(model), lenmem.Training(steps=1, batch_size=2, log_every=1))
    run = lenmem.Run.of(lenmem.train(asked))
    (batch,) = example_batches(task, [task.train_lengths[0] + 3], 0)
    ((_, traces),) = observed(run.experiment.bound_model, run.seed_params(), [batch])
    scene = scene_of(run.experiment, batch, traces)
    clock = scenes.clock_of(scene)
    inputs, slots = int(batch.input_mask.sum()), int(batch.target_mask.sum())
    assert [step for step in clock.reads if step >= 0] == list(range(inputs))
    assert [step for step in clock.answers if step >= 0] == list(range(slots))
    assert clock.steps == traces["valid"].sum()
    if task.spec.takes_tokens:
        read = [int(token) for token, at in zip(traces["token"][0], clock.reads, strict=False) if at >= 0]
        assert read == batch.inputs[0, :inputs].tolist()


def test_the_lengths_follow_those_of_training():
    assert site.lengths_for(lenmem.tasks.make("copy")) == [8, 32, 64, 128, 256]
    assert site.lengths_for(lenmem.tasks.make("panm_reverse")) == [5, 8, 9, 18, 36]
    assert site.lengths_for(lenmem.tasks.make("arithmetic")) == [3, 5, 10]  # there are no deeper ones
    assert site.lengths_for(lenmem.tasks.make("modular_arithmetic")) == [7, 19, 39, 79, 159]  # only odd ones
    assert {shelf.find(name).name for name in site.DEFAULT} <= set(shelf.entries())


def test_an_installed_package_shows_the_same():
    """All networks of the gallery travel; two answer one question, the first of which has a memory."""
    known = shelf.entries()
    sent = {entry.name for entry in shelf.travelling(known.values())}
    assert set(shelf.GALLERY) <= sent
    assert site.DEFAULT == tuple(f"zoo:{name}" for name in shelf.GALLERY)
    first, second = (known[name] for name in shelf.GALLERY[:2])
    assert first.record["experiment"]["task"] == second.record["experiment"]["task"]
    assert first.solved and second.model == "LSTM" and not second.solved
    assert len({known[name].model for name in shelf.GALLERY}) == len(shelf.GALLERY), "each has a memory of its own kind"


def test_what_cannot_be_shown_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    assert "full is not empty; nothing was written" in fails(capsys, "gallery", STACK, "--output", "full")
    Path("file").touch()
    assert "file is a file; nothing was written" in fails(capsys, "gallery", STACK, "--output", "file")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert "Did you mean 'lantm/reverse'" in fails(capsys, "gallery", "zoo:lantm/revers")
    assert "nowhere is not a run" in fails(capsys, "gallery", "nowhere")
    assert "each network needs a name of its own" in fails(capsys, "gallery", STACK, STACK)
    assert "the run has seeds 0 to 4" in fails(capsys, "gallery", STACK, "--seed", "9")
    monkeypatch.setattr(scenes, "moments", lambda *_, **__: [{"length": 4, "views": [], "data": "x" * 400_000}])
    assert "is too large for the page: 40" in fails(capsys, "gallery", STACK)
    assert not (tmp_path / "site").exists()


def test_lengths_that_do_not_fit_are_left_out(tmp_path, monkeypatch):
    made = [{"length": n, "views": [{}], "data": "x" * 40_000 * n} for n in (2, 4, 8)]
    monkeypatch.setattr(scenes, "moments", lambda *_, **__: made)
    said: list[str] = []
    site.write(tmp_path / "site", [STACK], lengths=(2, 4, 8), say=said.append)
    assert said == ["panm/dyck_2-stack_rnn: shown up to length 4, since longer ones do not fit on the page"]
    assert [moment["length"] for moment in network(tmp_path / "site", "panm.dyck_2-stack_rnn")[1]] == [2, 4]


def test_lengths_that_a_network_refuses_are_named(tmp_path, monkeypatch):
    def moments(run, lengths, **_):
        if max(lengths) > 2:
            raise ValueError("too long for me")
        return [{"length": n, "views": [{}], "data": ""} for n in lengths]

    monkeypatch.setattr(scenes, "moments", moments)
    said: list[str] = []
    site.write(tmp_path / "site", [STACK], lengths=(2, 4, 8), say=said.append)
    assert said == [f"panm/dyck_2-stack_rnn: not shown at length {n}: too long for me" for n in (8, 4)]


def test_text_of_the_data_cannot_leave_its_script():
    assert "<" not in site._json({"title": "</script><b>"})


# In a browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with browsing.chromium() as started:
        yield started


def opened(browser, page: Path, fragment: str = "") -> None:
    """Opens the page afresh, and waits for its figures."""
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}{fragment}")
    browsing.until(browser, "document.querySelector('.verdict:not(:empty)')")


def arrived(browser, where: str) -> None:
    """Waits until the page shows a step: `4/10`, or `/10` for any of ten."""
    browsing.until(browser, "document.getElementById('step-now').textContent.includes(arguments[0])", f"{where} ")


def pictures(browser) -> list[str]:
    """Hashes of all figures."""
    script = "return [...document.querySelectorAll('figure canvas')].map((canvas) => canvas.toDataURL())"
    return [hashlib.sha256(text.encode()).hexdigest() for text in browser.execute_script(script)]


def texts(browser, selector: str) -> list[str]:
    """The text of all elements that match."""
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
    )


def slide(browser, which: str, value: int) -> None:
    """Moves a slider as a hand does."""
    browser.execute_script(
        "const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('input'))",
        which,
        value,
    )


@pytest.mark.slow
def test_the_page_in_a_browser(browser, written):
    """From a file: no error, no request outside; sliders and keys move, figures change, everything has a text."""
    from selenium.webdriver.common.keys import Keys

    folder, _ = written
    browser.get_log("performance")
    opened(browser, folder / "index.html")
    assert texts(browser, "h2") == ["PANM on reverse", "LSTM on reverse"], "the first beside the second"
    assert texts(browser, "[data-is=inputs]")[0] == texts(browser, "[data-is=inputs]")[1]

    opened(browser, folder / "index.html", "#panm.dyck_2-stack_rnn//10/0")
    seen = [pictures(browser)]
    assert len(texts(browser, "[data-is=inputs] b")) == 10
    for step in (3, 9):
        slide(browser, "step", step)
        arrived(browser, f"{step + 1}/10")
        seen.append(pictures(browser))
    assert len({pair[0] for pair in seen}) == 3, "the stack changes"
    assert texts(browser, ".verdict") == ["10 of 10 right ✓"]
    body = browser.find_element("tag name", "body")
    body.send_keys(Keys.ARROW_LEFT)
    assert texts(browser, "#step-now")[0].startswith("9/10")
    body.send_keys(Keys.ARROW_DOWN)
    arrived(browser, "/4")
    assert len(texts(browser, "[data-is=inputs] b")) == 4
    body.send_keys(Keys.HOME)
    assert texts(browser, "#step-now")[0].startswith("1/4")
    browser.find_element("id", "play").click()
    arrived(browser, "4/4")

    labels = browser.execute_script(
        "return [...document.querySelectorAll('canvas[role=img], [role=img]')].map((e) => e.getAttribute('aria-label'))"
    )
    assert labels and all(labels)
    light = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    before = pictures(browser)
    browser.find_element("id", "theme").click()
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != light
    assert pictures(browser) != before, "figures follow the theme"

    logs = [entry["message"] for entry in browser.get_log("browser")]
    assert logs == []
    requests = browsing.requests(browser)
    assert any(address.endswith("networks/index.js") for address in requests)
    assert [address for address in requests if not address.startswith(("file://", "data:"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_a_phone_and_a_desk(browser, written, width):
    folder, _ = written
    browsing.resized(browser, width)
    opened(browser, folder / "index.html", "#panm.reverse-beyond/panm.reverse-lstm-small/10/12")
    across = browser.execute_script("return document.documentElement.scrollWidth")
    assert across <= width
    columns = browser.execute_script(
        "return new Set([...document.querySelectorAll('.network')].map((e) => e.offsetLeft)).size"
    )
    assert columns == (1 if width == 390 else 2)
    assert browser.get_log("browser") == []


# A moving picture -----------------------------------------------------------------------------------------------------


def film(*arguments: object) -> int:
    """`scripts/moving_picture.py`."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts/moving_picture.py"))
    return script["main"]([str(argument) for argument in arguments])


def test_only_a_network_of_a_gallery_is_filmed(capsys, tmp_path, written):
    for folder, network in ((tmp_path, "panm.reverse-beyond"), (written[0], "panm.reverse")):
        with pytest.raises(SystemExit):
            film(folder, network, 4, 2, tmp_path / "film.webp")
        assert f"{folder} is no gallery with {network}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_film_has_a_picture_for_each_step(capsys, tmp_path, written):
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("chromium is not installed: apt-get install chromium")
    assert film(written[0], "panm.reverse-beyond", 4, 3, tmp_path / "film.webp") == 0
    with Image.open(tmp_path / "film.webp") as picture:
        frames = [np.asarray(picture.convert("RGB")) for at in range(picture.n_frames) if picture.seek(at) is None]
    assert len(frames) == 3 and not np.array_equal(frames[0], frames[2])
