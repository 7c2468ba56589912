"""The files that the page on deployment offers."""

import json
import shlex
from configparser import ConfigParser

import pytest
from contracts.commands import taken
from contracts.documents import ALL, GUIDE, ROOT, SHELLS, blocks, blocks_in
from contracts.shells import calls
from dockerfile_parse import DockerfileParser

from pgbus.engine.processes import supervisor
from pgbus.engine.settings import Settings

DEPLOY = ROOT / "docs" / "deploy"
URL = "postgresql://localhost/shop"
UNITS = sorted(DEPLOY.glob("*.service"))


def ini(text):
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(text)
    return parser


@pytest.fixture
def longest_stop():
    """The seconds that pgbus may take to stop, by its defaults."""
    shutdown = Settings(database_url=URL).shutdown_timeout.total_seconds()
    return shutdown + supervisor._GRACE


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_and_gives_it_the_time_to_stop(unit, longest_stop):
    parsed = ini(unit.read_text())
    assert parsed.sections() == ["Unit", "Service", "Install"]
    service = parsed["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == f"{service['WorkingDirectory']}/.venv/bin/pgbus"
    if taken(words) != ("dashboard",):
        assert int(service["TimeoutStopSec"]) > longest_stop
        assert service["KillMode"] == "mixed"


def test_a_container_is_given_the_time_to_stop(longest_stop):
    patience = [
        int(words[words.index("--stop-timeout") + 1])
        for block in blocks_in(ALL, *SHELLS)
        for program, *words in calls(block.code)
        if program == "docker" and {"worker", "dispatcher", "start"} & {words[-1]}
    ]
    assert patience
    assert min(patience) > longest_stop


def test_the_image_runs_pgbus_itself_as_no_root_and_with_settings_that_exist():
    dockerfile = DockerfileParser(str(DEPLOY))
    steps = [one for one in dockerfile.structure if one["instruction"] != "COMMENT"]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ARG", "ENV", "USER", "CMD"}
    assert {one["instruction"] for one in steps} <= known
    *_, user, command = steps
    assert (user["instruction"], command["instruction"]) == ("USER", "CMD")
    assert user["value"] != "root"
    program, *words = json.loads(command["value"])
    assert program == "pgbus"
    taken(words)
    assert Settings.load({**dockerfile.envs, "PGBUS_DATABASE_URL": URL}).log_format == "json"


def test_every_file_is_on_the_page():
    page = GUIDE / "deployment.md"
    shown = {block.code for block in blocks(page)}
    assert {path.name for path in DEPLOY.iterdir() if path.read_text() not in shown} == set()


def test_an_ini_block_can_be_read():
    for block in blocks_in(ALL, "ini"):
        assert ini(block.code).sections(), block
