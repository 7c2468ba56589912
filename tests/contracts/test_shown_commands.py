"""Each command line in the documents is one that its program takes."""

import json
import re
import tomllib

import pytest
from contracts.commands import paths, taken
from contracts.documents import ALL, ROOT, SHELLS, TAUGHT, blocks, blocks_in
from contracts.shells import calls

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
MODULES = {block.module for block in blocks_in(TAUGHT, "python")}


@pytest.mark.parametrize("block", blocks_in(ALL, *SHELLS), ids=str)
def test_a_shell_block_runs_and_its_commands_are_taken(block):
    for program, *words in calls(block.code):
        check(program, words)


def check(program, words):
    match program:
        case "pgbus":
            taken(words)
        case "docker" if "pgbus" in words:
            taken(words[words.index("pgbus") + 1 :])
        case "make":
            assert {word for word in words if "=" not in word} <= TARGETS
        case "pip":
            extras = re.findall(r"pgbus\[(.*?)\]", " ".join(words))
            named = {extra for one in extras for extra in one.split(",")}
            assert named <= PYPROJECT["project"]["optional-dependencies"].keys()
        case "systemctl":
            for unit in (word for word in words if word.endswith(".service")):
                assert (ROOT / "docs" / "deploy" / re.sub("@.*?[.]", "@.", unit)).exists(), unit
        case "ssh":
            check(words[1], words[2:])
        case "flask" | "uvicorn":
            (module,) = re.findall(r"\b(shop\.\w+)\b", " ".join(words))
            assert module.replace(".", "/") + ".py" in MODULES


def test_every_command_is_shown():
    shown = {taken(words) for words in [*shown_in_shells(), *shown_in_configurations()]}
    assert set(paths()) - shown == set()


def shown_in_shells():
    for block in blocks_in(ALL, *SHELLS):
        for program, *words in calls(block.code):
            if program == "pgbus":
                yield words


def shown_in_configurations():
    """The commands that an AI client is told to start."""
    for block in blocks_in(ALL, "json"):
        for server in json.loads(block.code).get("mcpServers", {}).values():
            if server.get("command", "").endswith("pgbus"):
                yield server["args"]


def test_no_block_escapes_the_tests_by_standing_in_a_list():
    for page in ALL:
        fences = re.findall(r"^ *```\w", page.read_text(), re.MULTILINE)
        assert len(fences) == len([one for one in blocks(page) if one.language]), page.name
