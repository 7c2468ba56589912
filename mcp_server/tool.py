"""What a tool is: a model of its arguments, which answers. Its docstring is what clients are told of it."""

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import mcp_types
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pgbus.engine.bus import Pgbus
from pgbus.engine.insights import reading
from pgbus.engine.settings import Settings
from pgbus.mcp_server.answers import plain

if TYPE_CHECKING:
    from pgbus.engine.storage.database import Connection

Answer = dict[str, object]

#: A text without NUL, which PostgreSQL does not hold.
Text = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00]*$")]

ClassName = Annotated[
    Text, Field(description="A whole dotted name, such as shop.orders.OrderWorkflow.")
]
Cursor = Annotated[Text, Field(description="The next_cursor of the page before.")]
Limit = Annotated[int, Field(ge=1, le=100, description="At most so many.")]
IncludePayloads = Annotated[
    bool,
    Field(
        description="Show arguments, outputs, payloads and error texts; only where the server allows it."
    ),
]


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a tool answers: the bus, whether its payloads may be shown, and who is recorded."""

    bus: Pgbus
    allow_payloads: bool
    actor: str


class Tool(BaseModel, ABC):
    """The arguments of one call, checked: an unknown one or another type is refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: ClassVar[str]
    annotations: ClassVar[mcp_types.ToolAnnotations]
    #: What is known of the call when PostgreSQL went away.
    outage: ClassVar[str]

    @abstractmethod
    def answer(self, caller: Caller) -> Answer:
        """Return the answer as JSON has it."""

    @classmethod
    def described(cls) -> mcp_types.Tool:
        """Return what clients are told of the tool."""
        schema = cls.model_json_schema()
        del schema["description"]
        return mcp_types.Tool(
            name=cls.name,
            description=inspect.cleandoc(cls.__doc__ or ""),
            input_schema=schema,
            annotations=cls.annotations,
        )


class ReadTool(Tool):
    """A tool that only reads, all of one moment."""

    annotations = mcp_types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    outage = "PostgreSQL cannot be reached just now, so nothing is known. Ask again in a moment."

    def answer(self, caller: Caller) -> Answer:
        """Return what was found, without what stays secret."""
        with reading.answered():
            caller.bus.check_schema()
        with reading.reading(caller.bus.services) as connection:
            found = self.read(connection, caller.bus.settings)
        return told(found, shown=caller.allow_payloads and self.wants_payloads)

    @abstractmethod
    def read(self, connection: "Connection", settings: Settings) -> object:
        """Return what is found: an object of the insights, or several by name."""

    @property
    def wants_payloads(self) -> bool:
        """Whether the call asks for arguments, outputs, payloads and error texts."""
        return False


class PayloadTool(ReadTool):
    """A tool among whose answers is data of the host's."""

    include_payloads: IncludePayloads = False

    @property
    def wants_payloads(self) -> bool:
        """Whether the call asks for arguments, outputs, payloads and error texts."""
        return self.include_payloads


def told(found: object, *, shown: bool) -> Answer:
    """Return an object, or several by name, as JSON has them."""
    answer = plain(found, shown=shown)
    assert isinstance(answer, dict)  # noqa: S101 (that is what tools find)
    return answer
