"""The documents as a site."""

import os
import re
import subprocess
import sys

from contracts.documents import ROOT

DOCS = ROOT / "docs"

#: What a browser fetches by itself, unlike the target of a link that somebody follows.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//|@import"""
)


def test_the_site_builds_whole_without_a_warning_and_asks_nothing_of_another_host(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("INFO")] == []

    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not (tmp_path / page).exists()} == set()
    for built in [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]:
        assert not FETCHED.search(built.read_text()), built

    # A file that is shown is in the page, not its name.
    deployment = (tmp_path / "guide" / "deployment.html").read_text()
    assert "KillMode" in deployment
    assert "--8&lt;--" not in deployment
