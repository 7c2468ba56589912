"""The guide's page on FastAPI, served as it stands there."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest
from contracts.documents import GUIDE, blocks, blocks_in
from support.sites import hidden_fields
from support.waiting import eventually

SERVED = """
import shop.asynchronous
from shop.models import Base, engine
from shop.site import api

Base.metadata.create_all(engine)
"""


@pytest.fixture
def shop(tmp_path, database):
    """The guide's shop on the test's database; what has no module on the page is `shop.asynchronous`."""
    page = [block for block in blocks(GUIDE / "fastapi.md") if block.language == "python"]
    modules = {one.module: one.code for one in blocks_in(sorted(GUIDE.glob("*.md")), "python")}
    modules |= {one.module or "shop/asynchronous.py": one.code for one in page}
    modules |= {"served.py": SERVED}
    own = database.sqlalchemy_url("psycopg").render_as_string(hide_password=False)
    (tmp_path / "shop").mkdir()
    for name, code in modules.items():
        if name and not name.startswith("tests/"):
            here = code.replace("postgresql+psycopg://localhost/shop", own)
            here = here.replace("postgresql://localhost/shop", database.url)
            (tmp_path / name).write_text(here)
    return tmp_path


class Browser:
    """Asks one server, and keeps its cookies."""

    def __init__(self, address):
        self.address = address
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def ask(self, path, data=None, kind="application/json"):
        """The status and text of the answer, or of the one that it leads to."""
        request = urllib.request.Request(self.address + path, data, {"Content-Type": kind})
        try:
            with self._opener.open(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def post(self, path, **document):
        return self.ask(path, json.dumps(document).encode())

    def send(self, path, **fields):
        return self.ask(path, urlencode(fields).encode(), "application/x-www-form-urlencoded")


@contextmanager
def served(folder):
    """A browser before the page's application, on uvicorn."""
    environment = {name: text for name, text in os.environ.items() if "PGBUS" not in name}
    environment |= {"SECRET_KEY": "of the test", "OPERATORS_PASSWORD": "sesame"}
    log = folder / "log"
    with log.open("w") as told:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "served:api", "--port", "0"],
            cwd=folder,
            env=environment,
            stdout=told,
            stderr=told,
        )
    try:
        yield Browser(eventually(lambda: address(server, log), within=60))
    finally:
        server.terminate()
        server.wait()


def address(server, log):
    assert server.poll() is None, log.read_text()
    found = re.search(r"http://127.0.0.1:\d+", log.read_text())
    return found and found[0]


def test_a_fastapi_application_starts_runs_with_its_rows_and_mounts_the_dashboard(shop, database):
    with served(shop) as browser:
        status, text = browser.post("/orders", total="7")
        assert status == 201
        run = json.loads(text)["run"]
        assert browser.post("/orders/async", total="8")[0] == 201
        assert database.value("SELECT count(*) FROM orders") == 2
        assert database.value("SELECT count(*) FROM pgbus.workflows") == 2
        assert json.loads(browser.ask(f"/runs/{run}")[1]) == {"status": "ready", "step": "reserve"}

        assert browser.ask("/pgbus/")[0] == 403
        assert browser.post("/login", name="ada", password="guess")[0] == 403
        assert browser.post("/login", name="ada", password="sesame")[0] == 204
        _, listed = browser.ask("/pgbus/workflows")
        (page,) = set(re.findall(rf'href="(/pgbus/[^"?]*{run})"', listed))
        token = hidden_fields(browser.ask(page)[1])["csrf_token"]
        status, told = browser.send(f"{page}/actions/cancel", csrf_token=token, reason="asked")
        assert status == 200
        assert "toast" in told
        assert json.loads(browser.ask(f"/runs/{run}")[1])["status"] == "cancelled"
    assert (
        database.value("SELECT actor FROM pgbus.workflow_events WHERE reason = 'asked'")
        == "dashboard:ada"
    )
