"""`pgbus mcp`: the tools of a process that the client starts, over its standard input and output."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from click.testing import CliRunner
from mcp import Client, StdioServerParameters
from mcp_types import Implementation

from pgbus import Workflow, step
from pgbus.engine.cli import main

APP = """
import sys
from pgbus import Pgbus, Workflow, step

print("An application that prints")

class Ticket(Workflow):
    @step(wait_for="closed")
    def hold(self): ...

bus = Pgbus()
"""


class Ticket(Workflow):
    @step(wait_for="closed")
    def hold(self): ...


@pytest.fixture
def conversation(database, tmp_path):
    """Holds a conversation with a `pgbus mcp` of its own: what the coroutine function of the client returns."""
    (tmp_path / "tickets.py").write_text(APP)

    def conversation(hold, *arguments, **variables):
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "pgbus.engine.cli", "mcp", *arguments],
            env={"PGBUS_DATABASE_URL": database.url, **variables},
            cwd=tmp_path,
        )

        async def held():
            async with Client(
                server, client_info=Implementation(name="ide", version="1")
            ) as client:
                return await hold(client)

        return asyncio.run(held())

    return conversation


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


def test_a_client_reads_and_acts_over_standard_input_and_output(bus, database, conversation):
    run = bus.start(Ticket, card="4929-1234")
    database.rows("UPDATE pgbus.workflows SET workflow_class = 'tickets.Ticket'")

    async def hold(client):
        listed = await call(client, "pgbus_workflows", workflow_class="tickets.Ticket")
        assert [one["workflow_id"] for one in listed["workflows"]] == [run.workflow_id]
        assert listed["workflows"][0]["class_loaded"]
        one = {"workflow_id": run.workflow_id}
        hidden = await call(client, "pgbus_workflow", **one)
        shown = await call(client, "pgbus_workflow", **one, include_payloads=True)
        assert (hidden["arguments"], shown["arguments"]) == ("[redacted]", {"card": "4929-1234"})
        await call(client, "pgbus_workflow_cancel", **one, reason="closed")

    switched_on = {"PGBUS_MCP_WRITE_TOOLS": "on", "PGBUS_MCP_ALLOW_PAYLOADS": "true"}
    conversation(hold, "--app", "tickets:bus", **switched_on)
    assert run.reload().status == "cancelled"
    assert run.events[-1].actor == "mcp:ide"


def test_it_starts_without_a_database_and_without_an_application_and_tells_of_the_outage(
    conversation,
):
    async def hold(client):
        assert "pgbus_workflow_cancel" not in [
            tool.name for tool in (await client.list_tools()).tools
        ]
        return await client.call_tool("pgbus_health", {})

    answer = conversation(hold, PGBUS_DATABASE_URL="postgresql://127.0.0.1:1/nothing")
    assert answer.is_error
    assert "PostgreSQL cannot be reached" in answer.content[0].text


def test_without_the_sdk_help_does_not_list_it_and_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "pgbus.mcp_server.command", raising=False)
    assert "  mcp  " not in CliRunner().invoke(main, ["--help"]).stdout
    assert "pip install 'pgbus[mcp]'" in CliRunner().invoke(main, ["mcp"]).stderr


def test_help_lists_the_command_and_does_not_import_the_sdk():
    code = (
        "import sys; from pgbus.engine.cli import main; main(['--help'], standalone_mode=False);"
        "assert not {'mcp', 'mcp_types'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "  mcp  " in done.stdout
