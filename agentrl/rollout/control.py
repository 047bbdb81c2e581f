"""Text → ids, such that only control strings written by the chat template become control ids (T4).

A control string is the text of an added token: `<|im_end|>`, but also tags like `</think>` that aren't flagged special.
Text from tools, users and system prompts is marked before the template sees it: each control string in it is put
between two private-use characters. After rendering, the roles are swapped: the unmarked control strings, which are
the template's, get the marks, and the text is encoded by a second tokenizer that knows them only by those marked
names. To that tokenizer the strings in content are ordinary text, and content is encoded in one piece.
Text without marks is encoded as usual.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from agentrl.errors import TemplateError

_OPEN, _CLOSE, _SPLIT, _REPLY = (chr(0x10FF70 + offset) for offset in range(4))
SENTINEL = f"{_REPLY}reply{_REPLY}"
"""Stands for a sampled reply in a render; no cleaned text contains it."""
_FORBIDDEN = re.compile(f"[{_OPEN}{_CLOSE}{_SPLIT}{_REPLY}]|([\ud800-\udfff])")


class ControlString(NamedTuple):
    """A control string that the template wrote, at [start, end) of a rendered text."""

    start: int
    end: int
    text: str


def clean(text: str) -> str:
    """Text without the characters that serve as marks, with U+FFFD for lone surrogates, which no tokenizer takes."""
    return _FORBIDDEN.sub(lambda match: "\ufffd" if match[1] else "", text)


class TextEncoder:
    """The two tokenizers. Both are copies, so that nobody's padding, truncation or flags reach them."""

    def __init__(self, backend: Any) -> None:
        """`backend` is a `tokenizers.Tokenizer`."""
        state = orjson.loads(backend.to_str()) | {"padding": None, "truncation": None}
        self._full = _tokenizer(backend, state)
        added = [token for token in state["added_tokens"] if _is_control(token)]
        self.control: dict[str, int] = {token["content"]: token["id"] for token in added}
        """Every control string and its id."""
        self.special = {token["content"] for token in added if token["special"]}
        self._pattern = re.compile(_any_of(set(self.control)) or "(?!)")
        self._marked_or_control = re.compile(f"{_OPEN}.*?{_CLOSE}|({self._pattern.pattern})", re.DOTALL)
        self._renamed = _tokenizer(backend, state | {"added_tokens": _renamed(state["added_tokens"])})
        self._original = {self._renamed.token_to_id(_marked(text)): id for text, id in self.control.items()}
        self._split_id = self._renamed.token_to_id(_SPLIT)
        self._as_text = self._split_stubborn()

    def mark(self, text: str) -> str:
        """Untrusted text, ready for the template: cleaned, its control strings marked as text."""
        return self._pattern.sub(lambda match: _marked(match[0]), clean(text))

    def encode(self, rendered: str) -> list[int]:
        """Ids of a rendered text: control ids for unmarked control strings only. No bos or eos is added."""
        if _OPEN not in rendered:
            ids: list[int] = self._full.encode(rendered, add_special_tokens=False).ids
            return ids
        swapped = self._marked_or_control.sub(self._swap, rendered)
        found = self._renamed.encode(swapped, add_special_tokens=False).ids
        return [self._original.get(id, id) for id in found if id != self._split_id]

    def is_id(self, id: int) -> bool:
        """Does it stand for a text?"""
        return self._full.id_to_token(id) is not None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control strings included."""
        text: str = self._full.decode(list(ids), skip_special_tokens=False)
        return text

    def written_by_template(self, rendered: str) -> Iterator[ControlString]:
        """The unmarked control strings of a rendered text, in order."""
        for match in self._marked_or_control.finditer(rendered):
            if match[1] is not None:
                yield ControlString(match.start(), match.end(), match[1])

    def _swap(self, match: re.Match[str]) -> str:
        if match[1] is not None:
            return _marked(match[1])
        text = match[0][1:-1]
        return self._as_text.get(text, text)

    def _split_stubborn(self) -> dict[str, str]:
        """Control strings that the model's vocabulary also knows as a word: cut behind their first character.

        Raises TemplateError where even that gives a control id.
        """
        cut: dict[str, str] = {}
        control_ids = set(self.control.values())
        for text in self.control:
            for form in (text, f"{text[0]}{_SPLIT}{text[1:]}"):
                if control_ids.isdisjoint(self._renamed.encode(form, add_special_tokens=False).ids):
                    break
                cut[text] = f"{text[0]}{_SPLIT}{text[1:]}"
            else:
                raise TemplateError(
                    f"the tokenizer turns the text {text!r} into a control id even in content; tools and users could "
                    f"fake turns with it. Use a tokenizer whose vocabulary doesn't learn its control strings as words"
                )
        return cut


def _tokenizer(like: Any, state: dict[str, Any]) -> Any:
    return type(like).from_str(orjson.dumps(state).decode())


def _marked(text: str) -> str:
    return f"{_OPEN}{text}{_CLOSE}"


def _is_control(token: dict[str, Any]) -> bool:
    """All added tokens but runs of white space: some vocabularies add those for code, and nobody can fake a turn."""
    return token["special"] or bool(token["content"].strip())


def _renamed(added_tokens: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The added tokens under their marked names, and one that cuts a text in two."""
    renamed = [
        token | {"content": _marked(token["content"])} if _is_control(token) else token for token in added_tokens
    ]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [*renamed, {"id": 0, "content": _SPLIT, **flags}]


def _any_of(words: set[str]) -> str:
    """A pattern for the longest of the words at a place. A trie: some tokenizers add thousands of them."""
    tails: dict[str, set[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], set()).add(word[1:])
    if not tails:
        return ""
    branches = [re.escape(head) + _any_of(rest) for head, rest in sorted(tails.items())]
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if "" in words else pattern
