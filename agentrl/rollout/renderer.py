"""Messages → ids, turn by turn, such that what was sampled is never touched (T1, T2, T4).

The first prompt is rendered whole and frozen. Each later turn adds only what the template writes after the reply
(see `scaffold`). So in `append` mode the context of turn n+1 is, id by id, the context of turn n, what was sampled
there, and new ids with mask 0::

    start(messages)                    <user>2+2?<end>\\n<assistant>
    sampled                                                        4<end>
    extend(reply, sampled, new)                                          \\n<user>sure?<end>\\n<assistant>

`rerender` mode follows a template that rewrites history: see `agentrl.rollout.context`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Literal, get_args

from agentrl.errors import TemplateError
from agentrl.rollout.control import TextEncoder, clean
from agentrl.rollout.limits import cap_observation
from agentrl.rollout.parsers.choose import AUTO
from agentrl.rollout.scaffold import Scaffold
from agentrl.rollout.selfcheck import check_template
from agentrl.rollout.template import USER, ChatTemplate, ChatTokenizer, Json
from agentrl.rollout.tokenizer import load_tokenizer
from agentrl.types import Message

Mode = Literal["append", "rerender"]

MAX_STARTS = 4096
"""First prompts that are kept: the samples of a group begin with the same one."""

_NUM_LAST = 16
"""Ids at the end of a prompt that hold an opened think block, also where its tag is no token of its own."""


class Renderer:
    """The ids of conversations with one model. Safe to share between rollouts of one event loop."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        mode: Mode = "append",
        template_kwargs: Mapping[str, Any] | None = None,
        stop_ids: Iterable[int] | None = None,
        tool_parser: str = AUTO,
    ) -> None:
        """`stop_ids`: the end tokens of the model's generation config; the tokenizer's and the template's are added.

        Raises TemplateError where the tokenizer has no chat template or it can't be followed turn by turn, or where
        `tool_parser` can't read the calls that it writes; ConfigError for a parser that there isn't.
        """
        if mode not in get_args(Mode):
            raise ValueError(f"mode {mode!r} is unknown; choose one of {', '.join(get_args(Mode))}")
        self.tokenizer = tokenizer
        self.mode: Mode = mode
        self.encoder = TextEncoder(_backend(tokenizer))
        self.template = ChatTemplate(tokenizer, self.encoder, template_kwargs or {}, tool_parser)
        self.parser = self.template.parser
        """Reads the replies."""
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.model_stop_ids = frozenset([*(stop_ids or ()), *eos])
        """The stops of tokenizer and generation config."""
        self.scaffold = Scaffold(self.template, self.model_stop_ids)
        self.stop_ids: tuple[int, ...] = tuple(sorted(self.scaffold.stop_ids))
        """Sampling stops at each of these."""
        self.closing_ids = self.scaffold.closing_ids
        """What a reply ends with and its text doesn't show: the stop ids, and what is sampled just before them."""
        self._starts: dict[tuple[Any, ...], list[int]] = {}
        self._starts_tools: list[Json] = []
        self._prompt = self.template.render([USER])
        self.opens_think = self.parser.in_think
        """A first prompt opens a think block, so replies start inside one."""

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        mode: Mode = "append",
        template_kwargs: Mapping[str, Any] | None = None,
        tool_parser: str = AUTO,
    ) -> Renderer:
        """The renderer of a model folder or hub id. Raises ModelError (no tokenizer) and what `Renderer` raises."""
        tokenizer, stop_ids = load_tokenizer(path)
        return cls(tokenizer, mode=mode, template_kwargs=template_kwargs, stop_ids=stop_ids, tool_parser=tool_parser)

    @property
    def template_hash(self) -> str:
        """Of the template, its arguments and the control tokens: equal hashes render equally."""
        return self.template.hash

    @property
    def tools_in_system(self) -> bool:
        """The template doesn't show tools in the form that the parser reads, so the system message describes them."""
        return self.template.tools_in_system

    @property
    def call_form(self) -> str:
        """What the model is told that a call looks like."""
        return self.parser.form

    def check(self, tools: Sequence[Json]) -> None:
        """Compare with what the template renders for short conversations. Raises TemplateError where it differs."""
        check_template(self.template, self.scaffold, self.extend, tools)

    def start(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> list[int]:
        """The first prompt, up to where the reply begins. Keep it: a template may print today's date."""
        if any(message.role not in ("system", "user") for message in messages):
            return self._rendered(messages, tools)
        if self._starts_tools != tools or len(self._starts) >= MAX_STARTS:
            self._starts, self._starts_tools = {}, list(tools)
        key = (date.today(), *((message.role, message.text, message.name) for message in messages))
        if key not in self._starts:
            self._starts[key] = self._rendered(messages, tools)
        return self._starts[key].copy()

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Json]) -> list[int]:
        return self.encoder.encode(self.template.render(*self.template.conversation(messages, tools)))

    def extend(
        self, reply: Message, sampled_ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[Json] = ()
    ) -> list[int]:
        """Only the ids that follow the sampled ones, up to where the next reply begins; all have mask 0.

        `new_messages` are all messages since the reply: templates merge tool results. Raises ValueError for an
        assistant message among them, TemplateError where the template refuses or drops one.
        """
        if any(message.role == "assistant" for message in new_messages):
            raise ValueError("an assistant message can't be appended: replies are sampled")
        names = {call.id: call.name for call in reply.tool_calls}
        calls = tuple((self.encoder.mark(call.id), self.encoder.mark(call.name)) for call in reply.tool_calls)
        new = [self.template.as_dict(message, names) for message in new_messages]
        tail = self.scaffold.tail(calls, new, self.template.shown(tools))
        # The anchor isolates merges and takes the white space that it owns; it is dropped again if it was sampled.
        ids = self.encoder.encode(tail.anchor + tail.text)
        last = sampled_ids[-1] if sampled_ids else None
        if last == ids[0]:
            return ids[1:]
        if last in self.stop_ids:
            return ids if tail.opens or self.scaffold.is_opener(last) else ids[1:]
        before = self.encoder.encode(self.scaffold.closer_prefix)
        return ids if before and list(sampled_ids[-len(before) :]) == before else before + ids

    def ends_in_think(self, prompt_ids: Sequence[int]) -> bool:
        """Does a prompt open a think block? DeepSeek's do after a question, but not after results."""
        return self.decode(prompt_ids[-_NUM_LAST:]).rstrip().endswith(self.parser.think_open.rstrip())

    def is_id(self, id: int) -> bool:
        """Does it stand for a text?"""
        return self.encoder.is_id(id)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control strings included."""
        return self.encoder.decode(ids)

    def encode_text(self, text: str) -> list[int]:
        """The ids of untrusted text alone: its control strings stay text."""
        return self.encoder.encode(self.encoder.mark(text))

    def cap(self, text: str, max_tokens: int) -> str:
        """`text`, or its head and tail where it is longer than `max_tokens`."""
        return cap_observation(text, max_tokens, self.encode_text, self.decode)

    def encode_reply(self, message: Message) -> list[int]:
        """An assistant's message as ids that a model would have sampled for it, through the stop id.

        For scripted play. The text is trusted: think and call tags become control ids where the tokenizer has them.
        """
        written = self.parser.write(message)
        body = clean(written) if self.parser.is_whole else self._reply_body(written, message.reasoning or "")
        ends_calls = self.encoder.control.get(self.parser.call_end) in self.stop_ids and message.tool_calls
        end = self.parser.call_end if ends_calls else self.scaffold.reply_end
        if end is None:  # the template ends no reply; any stop id will do, the next message's opening is added
            eos = self.tokenizer.eos_token_id
            end = self.encoder.decode([self.stop_ids[0] if eos is None else eos])
        return self.encoder.encode(body + end)

    def retokenized(self, ids: Sequence[int]) -> bool:
        """Whether text → ids would give other ids than these. For counting only: no one trains on re-encoded text."""
        return self.encoder.encode(clean(self.decode(ids))) != list(ids)

    def _reply_body(self, content: str, reasoning: str) -> str:
        """The template's own rendering where it continues the prompt and drops nothing, else written by hand."""
        content, reasoning = clean(content), clean(reasoning)
        message: Json = {"role": "assistant", "content": content}
        if reasoning:
            message[self.template.forms.reasoning_key] = reasoning
        rendered = self.template.render([USER, message], prompt=False).removesuffix(self.scaffold.last_closing)
        body = rendered.removeprefix(self._prompt)
        if len(body) < len(rendered) and content.strip() in body and reasoning.strip() in body:
            return body
        if self.opens_think:
            return f"{reasoning}\n</think>\n\n{content}"
        return f"<think>\n{reasoning}\n</think>\n\n{content}" if reasoning else content


def _backend(tokenizer: ChatTokenizer) -> Any:
    """The tokenizer's Rust half. Raises TemplateError where there is none, or no chat template."""
    if not tokenizer.chat_template:
        raise TemplateError(
            f"{tokenizer.name_or_path} has no chat template: its tokenizer doesn't say how a conversation is written. "
            f"Use the instruction-tuned model, or add its chat_template.jinja to the model folder"
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TemplateError(f"{tokenizer.name_or_path} has no fast tokenizer; convert it to a tokenizer.json")
    return backend
