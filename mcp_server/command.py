"""`pgbus mcp`: the tools for a client on this machine."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from importlib.util import find_spec

import click

from pgbus.engine.cli.app import app_option, opened
from pgbus.engine.observe import logs

if find_spec("mcp") is None:  # then help does not list the command
    raise ModuleNotFoundError("No module named 'mcp'", name="mcp")


@click.command()
@app_option()
@click.option(
    "--allow-payloads",
    envvar="PGBUS_MCP_ALLOW_PAYLOADS",
    show_envvar=True,
    is_flag=True,
    help="Let a call ask for arguments, outputs, payloads and error texts.",
)
def mcp(app: str | None, *, allow_payloads: bool) -> None:
    """Serve tools to an AI client, over standard input and output.

    They only read, unless the setting mcp_write_tools is on.
    """
    import anyio  # noqa: PLC0415 (with the SDK it takes a second, which `pgbus --help` does not need)
    from mcp.server.stdio import stdio_server  # noqa: PLC0415

    from pgbus.mcp_server.server import build  # noqa: PLC0415

    async def serve() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    with ExitStack() as stack:
        with redirect_stdout(sys.stderr):  # what the application prints is no message
            bus = stack.enter_context(opened(app))
        logs.configure(bus.settings.log_format)
        server = build(bus, allow_payloads=allow_payloads)
        anyio.run(serve)
