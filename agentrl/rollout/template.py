"""What the chat template sees, and what it writes: messages as dicts in, one string out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jinja2 import TemplateSyntaxError

from agentrl.errors import TemplateError
from agentrl.rollout.control import TextEncoder, clean
from agentrl.rollout.forms import learn_forms, with_parts
from agentrl.rollout.parsers.choose import AUTO, choose_parser
from agentrl.types import Message

Json = dict[str, Any]
USER: Json = {"role": "user", "content": "hi"}
"""The user message in front of a sentinel reply: templates want a user first."""


class ChatTokenizer(Protocol):
    """What is used of a transformers tokenizer (a fast one)."""

    name_or_path: str
    chat_template: Any
    eos_token_id: int | None
    eos_token: Any
    backend_tokenizer: Any

    def apply_chat_template(self, conversation: Any, *args: Any, **kwargs: Any) -> Any: ...


class ChatTemplate:
    """A tokenizer's chat template with its arguments. Every failure is a TemplateError that names the model."""

    def __init__(
        self, tokenizer: ChatTokenizer, encoder: TextEncoder, kwargs: Mapping[str, Any], tool_parser: str = AUTO
    ) -> None:
        self.tokenizer = tokenizer
        self.encoder = encoder
        self.kwargs = dict(kwargs)
        self.name = tokenizer.name_or_path or type(tokenizer).__name__
        self._shown: tuple[Sequence[Json], list[Json]] = ([], [])
        self.forms = learn_forms(self._apply)
        prompt = self.render([USER])
        choice = choose_parser(tool_parser, self.render, control=encoder.control, prompt=prompt, model=self.name)
        self.parser = choice.parser
        """Reads the calls of this template's model, and writes them."""
        self.tools_in_system = not choice.shows_tools
        """The template doesn't show the tools in the parser's form: they are described in the system message."""
        self._only_one_call = choice.max_calls == 1
        self.calls_in_content = choice.max_calls == 0
        """The template doesn't write calls in the parser's form: they are written as text of the assistant."""

    @property
    def hash(self) -> str:
        """Of all that decides which ids a conversation gets, besides the vocabulary."""
        parts = [self.tokenizer.chat_template, self.kwargs, sorted(self.encoder.control.items())]
        parts += [self.parser.instructions("")] if self.tools_in_system else []
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def render(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, prompt: bool = True) -> str:
        """The text of a conversation; `prompt`: with the opening of the next reply. Raises TemplateError."""
        in_parts = self.forms.contents_in_parts
        return self._apply(list(map(with_parts, messages)) if in_parts else messages, tools, prompt=prompt)

    def _apply(self, messages: Sequence[Json], tools: Sequence[Json] = (), *, prompt: bool = True) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=prompt, **self.kwargs
            )
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template of {self.name} has a syntax error in line {error.lineno}: {error.message}"
            ) from error
        except Exception as error:  # templates raise jinja errors, TypeError, ValueError and more
            roles = ", ".join(message["role"] for message in messages)
            raise TemplateError(
                f"the chat template of {self.name} can't render a conversation of ({roles}): "
                f"{type(error).__name__}: {error}. Use messages that it accepts, or a chat template that takes them"
            ) from error
        return text

    def conversation(self, messages: Sequence[Message], tools: Sequence[Json]) -> tuple[list[Json], list[Json]]:
        """Messages and tools as the template gets them; untrusted text is marked, assistants' text is not."""
        dicts = [self.as_dict(message) for message in messages]
        if not (tools and self.tools_in_system):
            return dicts, self.shown(tools)
        schemas = "\n".join(json.dumps(self._mark(tool), ensure_ascii=False) for tool in tools)
        instructions = self.parser.instructions(schemas)
        if dicts and dicts[0]["role"] == "system":
            first = dicts[0] | {"content": f"{dicts[0]['content']}\n\n{instructions}"}
            return [first, *dicts[1:]], []
        return [{"role": "system", "content": instructions}, *dicts], []

    def shown(self, tools: Sequence[Json]) -> list[Json]:
        """The tools that the template itself gets, marked. The last ones are kept: they are asked for at each turn."""
        if self.tools_in_system:
            return []
        if self._shown[0] != tools:
            self._shown = (list(tools), [self._mark(tool) for tool in tools])
        return self._shown[1]

    def as_dict(self, message: Message, call_names: Mapping[str, str] | None = None) -> Json:
        """One message for the template. Content is never None; keys without a value are left out."""
        if message.role == "assistant":
            return self._assistant(message)
        result: Json = {"role": message.role, "content": self.encoder.mark(message.text)}
        name = message.name or (call_names or {}).get(message.tool_call_id or "")
        if message.tool_call_id is not None:
            result["tool_call_id"] = self.encoder.mark(message.tool_call_id)
        if name is not None:
            result["name"] = self.encoder.mark(name)
        return result

    def _assistant(self, message: Message) -> Json:
        arguments = [self.forms.arguments(clean(call.arguments)) for call in message.tool_calls]
        # Llama 3 refuses several calls, gpt-oss drops all but the first.
        is_refused = (self._only_one_call and len(message.tool_calls) > 1) or None in arguments
        inline = is_refused or (self.calls_in_content and self.forms.results_of_text)
        result: Json = {"role": "assistant", "content": clean(self.parser.write(message) if inline else message.text)}
        if message.reasoning is not None:
            result[self.forms.reasoning_key] = clean(message.reasoning)
        if message.tool_calls and not inline:
            result["tool_calls"] = [
                call_dict(clean(call.id), clean(call.name), value)
                for call, value in zip(message.tool_calls, arguments, strict=True)
                if value is not None
            ]
        return result

    def _mark(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.encoder.mark(value)
        if isinstance(value, Mapping):
            return {self._mark(key): self._mark(item) for key, item in value.items()}
        return [self._mark(item) for item in value] if isinstance(value, list | tuple) else value


def call_dict(id: str, name: str, arguments: Json | str) -> Json:
    """A tool call as templates expect it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
