"""The built documentation, in a real browser: nothing from outside, equations, search, two widths, two themes.

Builds the documentation, which takes a minute, unless `LENMEM_PAGES` names a folder in which it is built already.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import browsing

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[1] / "docs"
LOOKED_AT = ("index", "papers/dnc", "colab/dnc", "api/ops", "networks_and_tasks", "results/README", "genindex")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The folder of the built pages."""
    if built := os.environ.get("LENMEM_PAGES"):
        return Path(built).resolve()
    pytest.importorskip("sphinx_book_theme", reason="the extra docs is not installed")
    pytest.importorskip("myst_nb", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(folder)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def browser():
    with browsing.chromium() as started:
        yield started


def opened(browser, address: str, ready: str) -> None:
    """Opens a page, and waits until the condition holds."""
    browser.get(address)
    browsing.until(browser, ready)


def complaints(browser) -> list[str]:
    """What the console says, but for the theme's own notes on its state."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


LOADED = "document.readyState === 'complete'"
SETTLED = f"{LOADED} && (!document.querySelector('.math') || document.querySelector('mjx-assistive-mml'))"
"""Its equations, if it has any, are set."""


def test_no_page_names_a_file_from_elsewhere(pages):
    """Scripts, styles, pictures and frames of every page lie beside it."""
    sources = re.compile(r'<(?:script|img|iframe|source)\b[^>]*?\bsrc="([^"]+)"|<link\b[^>]*?\bhref="([^"]+)"')
    count = 0
    for path in pages.rglob("*.html"):
        if path.parent.name == "_static":
            continue  # a template of the theme
        for source in map("".join, sources.findall(path.read_text())):
            address = source.partition("?")[0].partition("#")[0]
            if address.startswith("data:"):
                continue
            assert "//" not in address, f"{path.relative_to(pages)} needs {address}"
            assert (path.parent / address).exists(), f"{path.relative_to(pages)} needs {address}, which is missing"
            count += 1
    assert count > 500


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_is_whole_without_a_network(browser, pages, name):
    """No message in the console, no request to anywhere but files; every picture has a size and a text."""
    browser.get_log("browser")
    browser.get_log("performance")
    opened(browser, (pages / f"{name}.html").as_uri(), SETTLED)
    assert complaints(browser) == []
    asked = browsing.requests(browser)
    assert asked
    assert [address for address in asked if not address.startswith(("file://", "data:", "blob:"))] == []
    pictures = "[...document.querySelectorAll('.bd-article img')]"
    assert browser.execute_script(f"return {pictures}.every((img) => img.complete && img.naturalWidth > 0)")


def test_equations_are_set(browser, pages):
    """Each has become a picture made of glyphs, and text for a screen reader; none has an error."""
    opened(browser, (pages / "papers/dnc.html").as_uri(), "document.querySelector('mjx-container')")
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.execute_script(count, "span.math, div.math") > 10
    assert browser.execute_script(count, "mjx-container mjx-c") > 100
    assert browser.execute_script(count, "mjx-assistive-mml math") > 10
    assert browser.execute_script(count, "mjx-merror, [data-mjx-error]") == 0


@pytest.mark.parametrize("word, page", [("geometric_attention_weights", "api/ops"), ("priority", "api/tasks")])
def test_the_search_finds(browser, pages, word, page):
    found = f"[...document.querySelectorAll('#search-results li a')].some((a) => a.href.includes('{page}'))"
    opened(browser, f"{(pages / 'search.html').as_uri()}?q={word}", found)


@pytest.mark.parametrize("width, theme", [(390, "dark"), (1280, "light")])
def test_pages_fit_a_phone_and_a_desk(browser, pages, width, theme):
    """Nothing is wider than the window; wide tables scroll by themselves. Text differs from its background."""
    browsing.resized(browser, width)
    browser.get((pages / "index.html").as_uri())
    browser.execute_script("localStorage.setItem('mode', arguments[0])", theme)
    for name in LOOKED_AT:
        opened(browser, (pages / f"{name}.html").as_uri(), LOADED)
        assert browser.execute_script("return document.documentElement.dataset.theme") == theme
        across = browser.execute_script("return document.documentElement.scrollWidth")
        assert across <= width, f"{name} is {across} wide"
        ink, paper = browser.execute_script(
            "return [getComputedStyle(document.querySelector('.bd-article :is(p, h1)')).color,"
            " getComputedStyle(document.body).backgroundColor]"
        )
        brightness = [sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 765 for color in (ink, paper)]
        assert (brightness[0] < brightness[1]) == (theme == "light")
        assert abs(brightness[0] - brightness[1]) > 0.5
