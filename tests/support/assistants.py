"""An AI client's side of the tools, and a server of its own for an ASGI application."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import contextmanager

import httpx2
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation
from support.waiting import eventually


@contextmanager
def listening(app):
    """Serves the application on a free port of this machine; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Assistant:
    """Calls tools by the SDK's own client; the calls that are made together are on one connection."""

    def __init__(self, url, *, name="claude", mode="auto", **headers):
        self._url = url
        self._options = {"client_info": Implementation(name=name, version="1"), "mode": mode}
        self._headers = headers

    def call(self, tool, /, **arguments):
        """Returns the tool's answer; fails when it is an error."""
        (answer,) = self.answers([(tool, arguments)])
        return answer

    def answers(self, calls):
        """Returns the answers to calls, each a tool and its arguments; fails when one is an error."""
        answers = []
        for result in self._results(calls):
            assert not result.is_error, result.content
            assert json.loads(result.content[0].text) == result.structured_content
            answers.append(result.structured_content)
        return answers

    def refused(self, tool, /, **arguments):
        """Returns the text of the tool's error."""
        (text,) = self.refusals([(tool, arguments)])
        return text

    def refusals(self, calls):
        """Returns the texts of the errors that calls are answered with."""
        texts = []
        for result in self._results(calls):
            assert result.is_error, result.structured_content
            texts.append(result.content[0].text)
        return texts

    def tools(self):
        """Returns what the server tells of its tools, by name."""
        listed = self._with(lambda client: client.list_tools())
        return {tool.name: tool for tool in listed.tools}

    @property
    def instructions(self):
        async def told(client):
            return client.instructions

        return self._with(told)

    def _results(self, calls):
        async def called(client):
            return [await client.call_tool(*call) for call in calls]

        return self._with(called)

    def _with(self, ask):
        async def connected():
            async with httpx2.AsyncClient(
                headers=self._headers, trust_env=False, timeout=20
            ) as web:
                transport = streamable_http_client(self._url, http_client=web)
                async with Client(transport, **self._options) as client:
                    try:
                        return await ask(client)
                    except MCPError as error:  # outside, it would be one of a group
                        return error

        if isinstance(answer := asyncio.run(connected()), MCPError):
            raise answer
        return answer
