"""What an example must look like to be imported. Files come from anywhere, so each field is checked and named."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from agentrl.errors import ExchangeError
from agentrl.exchange.conversation import Json
from agentrl.types import Message, Role, TextPart, ToolCall

MAX_ID = 2**31 - 1


class _Strict(BaseModel):
    """An unknown key may hold what the model was shown or said: it is refused, not dropped."""

    model_config = ConfigDict(extra="forbid")


class _Open(BaseModel):
    """Other keys are notes of whoever made the file."""

    model_config = ConfigDict(extra="ignore")


def _parsed(value: Any) -> Any:
    """Lists that a file of columns holds as text."""
    return json.loads(value) if isinstance(value, str) else value


class Function(_Strict):
    """What a call calls."""

    name: str
    arguments: str | dict[str, JsonValue] = "{}"


class Call(_Strict):
    """A tool call in the form of chat requests."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(_Strict):
    """A message in the form of chat requests."""

    role: Role
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = Field(
        None, validation_alias=AliasChoices("reasoning_content", "reasoning", "thinking")
    )
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    weight: Literal[0, 1] | None = None
    """0: a reply that is shown, not learnt."""

    @property
    def is_learnt(self) -> bool:
        """Shall the model say it?"""
        return self.role == "assistant" and self.weight != 0

    def as_message(self, place: int) -> Message:
        """As rollouts have it. `place`: in its conversation, for calls without an id."""
        calls = [_as_call(call, f"call_{place}_{number}") for number, call in enumerate(self.tool_calls or [])]
        own = {"role": self.role, "content": self.content or "", "reasoning": self.reasoning_content}
        return Message(**own, tool_calls=calls, tool_call_id=self.tool_call_id, name=self.name)


def _as_call(call: Call, id: str) -> ToolCall:
    given = call.function.arguments
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return ToolCall(id=call.id or id, name=call.function.name, arguments=arguments)


class Origin(_Open):
    """What is used of an example's provenance."""

    env: str = "import"
    task: str | None = None
    split: str = "train"
    reward: float | None = Field(None, allow_inf_nan=False)
    template_hash: str | None = None
    vocabulary: str | None = None


class Conversation(_Open):
    """A line with `messages`."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: Annotated[list[dict[str, JsonValue]] | None, BeforeValidator(_parsed)] = None
    provenance: Origin = Origin()


Id = Annotated[int, Field(strict=True, ge=0, le=MAX_ID)]
Bit = Annotated[int, Field(strict=True, ge=0, le=1)]


class Ids(_Open):
    """A line with `input_ids`."""

    input_ids: list[Id] = Field(min_length=1, validation_alias=AliasChoices("input_ids", "ids"))
    assistant_masks: list[Bit] = Field(validation_alias=AliasChoices("assistant_masks", "mask"))
    provenance: Origin = Origin()


Kind = TypeVar("Kind", bound=BaseModel)
_REMEDIES = {"extra_forbidden": "take it out", "missing": "add it"}


def parse(kind: type[Kind], where: str, value: Json) -> Kind:
    """An example of a kind. Raises ExchangeError that names the place, the field and what to do."""
    with named(where):
        return kind.model_validate(value)


@contextmanager
def named(where: str, *fields: str) -> Iterator[None]:
    """What doesn't fit leaves as an ExchangeError that names the place. `fields`: what the first number stands for."""
    try:
        yield
    except ValidationError as error:
        refuse(where, _first(error, fields))
    except (KeyError, TypeError, ValueError) as error:  # JSON of another form than ours, or no base64
        refuse(where, f"{type(error).__name__}: {error}; only what agentrl export wrote can be read so")


def refuse(where: str, problem: str) -> NoReturn:
    """Raises ExchangeError."""
    raise ExchangeError(f"{where}: {problem}; nothing was imported")


def _first(error: ValidationError, fields: Sequence[str]) -> str:
    found, *others = error.errors(include_url=False)
    path = list(found["loc"])
    if fields and isinstance(path[0], int):
        path[0] = fields[path[0]]
    place = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).removeprefix(".")
    given = "" if found["type"] in _REMEDIES else f", not {reprlib.repr(found['input'])}"
    more = f" (and {len(others)} more)" if others else ""
    return f"{place or 'the example'}: {found['msg']}{given}{more}: {_REMEDIES.get(found['type'], 'correct it')}"
