"""The page's files as they are served, and /status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headrace.server.routes.page import page_files
from server.running import Running

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src/headrace/server/page"
SCRIPTS = sorted(FOLDER.glob("*.js"))


def test_files_are_served_with_their_types_and_a_strict_policy(server: Running) -> None:
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert sorted(page_files()) == sorted(path.name for path in FOLDER.iterdir())
    for path in FOLDER.iterdir():
        answer = server.client.get("/" if path.name == "index.html" else f"/page/{path.name}")
        assert answer.status_code == 200
        assert answer.content == path.read_bytes()
        assert answer.headers["content-type"] == f"{types[path.suffix[1:]]}; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'self'"
        assert not {"script-src", "style-src", "connect-src"} & set(policy)
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"


def test_a_browser_that_has_a_file_gets_it_only_if_it_has_changed(server: Running) -> None:
    for path in ("/", "/page/app.js"):
        first = server.client.get(path)
        assert first.headers["cache-control"] == "no-cache"
        for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
            again = server.client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == first.headers["etag"]
        assert server.client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
        head = server.client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(first.content))


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e/app.py", "__init__.py", ""])
def test_other_files_are_not_served(server: Running, name: str) -> None:
    answer = server.client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_all_that_the_files_name_is_there_and_comes_from_this_server() -> None:
    page = (FOLDER / "index.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    pointed = re.findall(r'(?:\bfor|aria-controls|aria-describedby|aria-labelledby)="([^"]+)"', page)
    pointed += re.findall(r'href="#([^"]+)"', page)
    assert set(pointed) <= set(ids)
    assert set(re.findall(r'(?:src|href)="page/([^"]+)"', page)) <= set(page_files())
    for path in SCRIPTS:
        text = path.read_text()
        used = re.findall(r'(?:byId|getElementById)\("([\w-]+)"\)', text)
        assert set(used) <= set(ids), path
        assert set(re.findall(r'from "\./([^"]+)"', text)) <= set(page_files()), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function", text
        )
    for path in FOLDER.iterdir():
        elsewhere = re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]+[^\s\"']*", path.read_text())
        assert [url for url in elsewhere if url != "http://www.w3.org/2000/svg"] == [], path


def test_the_wheel_has_the_page(tmp_path: Path) -> None:
    # The build backend itself, without an environment of its own: what `python -m build` would run in one. Where there
    # is no C++ compiler the wheel has no native kernels; that is how it is built here, for it takes less time.
    code = f"from scikit_build_core.build import build_wheel; build_wheel({str(tmp_path)!r})"
    environment = {**os.environ, "CXX": str(tmp_path / "none")}
    subprocess.run((sys.executable, "-c", code), check=True, capture_output=True, cwd=ROOT, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for path in FOLDER.iterdir():
            assert archive.read(f"headrace/server/page/{path.name}") == path.read_bytes()


def test_status_counts_what_a_request_brings(server: Running) -> None:
    body = {"model": "tiny", "prompt": "The river runs", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    before = server.client.get("/status").json()
    assert server.post("/v1/completions", **body).status_code == 200
    # The last step is counted when the engine has nothing more to do, which is after its answer.
    for _ in range(100):
        after = server.client.get("/status").json()
        if after["output_tokens"] - before["output_tokens"] >= 5 and after["running"] == 0:
            break
    assert after["output_tokens"] - before["output_tokens"] == 5
    assert after["steps"] > before["steps"]
    assert after["step_seconds"] > before["step_seconds"]
    assert after["uptime_seconds"] >= before["uptime_seconds"]
    assert (after["running"], after["waiting"], after["free_pages"]) == (0, 0, after["pages"])
    assert (after["model"], after["state"], after["chat"]) == ("tiny", "serving", True)
    assert (after["max_running"], after["context"]) == (8, 512)
    assert json.dumps(after)
