"""The tool contract: a name, a JSON schema, and an async call.

Most tools are plain typed functions::

    @tool
    def add(a: int, b: int) -> str:
        '''Add two numbers.'''
        return str(a + b)

The schema comes from the signature, the description from the docstring. A parameter named `ctx` gets the
`ToolContext` and is not shown to the model. A function that raises gives an error observation: the agent's
mistakes are data. In-process functions can't be killed, so keep them short; `@tool(isolated=True)` runs one in a
process of its own, which is killed at the tool's time-out.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, create_model

from agentrl.sandbox import Sandbox


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What a call may use."""

    sandbox: Sandbox | None
    seed: int
    deadline: float
    """Of this call, on the clock of `time.monotonic`. A tool that ends what it started by then, as those in a box can,
    returns what was printed until then; it is given a moment for that before the call itself is ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What the model gets to see."""

    content: str
    is_error: bool = False
    terminated: bool = False
    """True: this call ends the episode (a submit tool)."""
    timed_out: bool = False
    """True: what it ran was ended at the time limit, and `content` says so."""


class Tool(ABC):
    """Something the model can call."""

    name: str
    description: str
    schema: dict[str, Any]
    """JSON schema of the arguments: an object."""
    read_only: bool = False
    """True: a call changes nothing, so the read-only calls that stand side by side in one reply run at once."""

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments coerced to the schema, as JSON; raises ValueError with the fields that don't fit."""
        return arguments

    @abstractmethod
    async def call(self, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        """Run. Whatever it raises becomes an error observation."""

    def spec(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


class FunctionTool(Tool):
    """A tool from a typed function, sync or async. The AgentLoop runs sync functions in threads of their own."""

    def __init__(self, function: Callable[..., Any], *, read_only: bool = False) -> None:
        self.function = function
        self.read_only = read_only
        self.name = function.__name__
        self.description = inspect.getdoc(function) or ""
        self.is_async = inspect.iscoroutinefunction(function)
        self._model, self._wants_ctx = _arguments_model(function)
        self.schema = _plain_schema(self._model)

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._model.model_validate(arguments).model_dump(mode="json")

    async def call(self, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        result = self.run(arguments, ctx)
        return as_result(await result if self.is_async else result)

    def run(self, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Call the function itself (for a coroutine function: make the coroutine)."""
        checked = self._model.model_validate(arguments)  # JSON has no dates, sets, models
        typed = {name: getattr(checked, name) for name in type(checked).model_fields}
        return self.function(**typed, **({"ctx": ctx} if self._wants_ctx else {}))


class IsolatedTool(FunctionTool):
    """A function tool whose every call runs in a child process; see `agentrl.isolated`. `ctx.sandbox` is None there.

    Arguments and result cross as JSON. Each call starts an interpreter, which imports the function's module.
    """

    def __init__(self, function: Callable[..., Any], *, read_only: bool = False) -> None:
        """Raises TypeError for a lambda, a closure, a method: what a child can't find by its name."""
        from agentrl.isolated import function_name

        function_name(function)
        super().__init__(function, read_only=read_only)
        self.is_async = True  # a call only waits for the process: it needs no thread

    async def call(self, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        from agentrl.isolated import run_isolated

        return await run_isolated(self, arguments, ctx)


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(*, isolated: bool = False, read_only: bool = False) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, isolated: bool = False, read_only: bool = False
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool from a typed function with a docstring.

    `isolated`: each call in a process that can be killed; `read_only`: see `Tool.read_only`.
    Raises TypeError where a parameter has no type, or an isolated function isn't defined at module level.
    """
    make = partial(IsolatedTool if isolated else FunctionTool, read_only=read_only)
    return make if function is None else make(function)


def as_result(value: Any) -> ToolResult:
    """A function's return value as a ToolResult: None is empty, bytes are text whose invalid UTF-8 can be restored."""
    if isinstance(value, ToolResult):
        return value if isinstance(value.content, str) else replace(value, content=_as_text(value.content))
    return ToolResult(content=_as_text(value))


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "surrogateescape")
    return str(value)


def _arguments_model(function: Callable[..., Any]) -> tuple[type[BaseModel], bool]:
    hints = get_type_hints(function)
    fields: dict[str, Any] = {}
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if name == "ctx":
            continue
        if name not in hints:
            raise TypeError(f"tool {function.__name__}: parameter {name} needs a type annotation")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (hints[name], default)
    config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")
    model = create_model(function.__name__, __config__=config, **fields)
    return model, "ctx" in parameters


def _plain_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema without pydantic's titles, which cost tokens and tell the model nothing."""

    def strip(node: Any, in_properties: bool = False) -> Any:
        if isinstance(node, dict):
            return {k: strip(v, k == "properties") for k, v in node.items() if in_properties or k != "title"}
        return [strip(item) for item in node] if isinstance(node, list) else node

    schema: dict[str, Any] = strip(model.model_json_schema())
    schema.pop("additionalProperties", None)
    return schema
