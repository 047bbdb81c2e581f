"""Sampled ids as text: which tags in it are control ids, and which ids hold which characters.

A tag for which the tokenizer has an id counts only where that id was sampled. Where a model spells the same letters
with ordinary ids, the first of them is put out of sight while the reply is read (`disguise`), and shown again in
whatever is taken out of it (`plain`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

Decode = Callable[[Sequence[int]], str]
_SHIFT = 0xDC00
"""A disguised letter is a lone surrogate: no tokenizer decodes to one, and it is as long as what it stands for."""
_DISGUISED = re.compile("[\udc00-\udc7f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_CHUNK = 16
"""Tokens that are decoded at once when looking for a place."""


def plain(text: str) -> str:
    """The text with every letter shown."""
    return text if text.isascii() else _DISGUISED.sub(lambda match: chr(ord(match[0]) - _SHIFT), text)


def without_surrogates(text: str) -> str:
    """Text that is of equal length and holds no disguised letters: U+FFFD for lone surrogates."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def disguise(text: str, ids: Sequence[int], decode: Decode, control: Mapping[str, int]) -> str:
    """`text` = decode(ids) with the spelled ones of the tags in `control` out of sight; all else in its place."""
    present = set(ids)
    spelled = [tag for tag, id in control.items() if text.count(tag) != (ids.count(id) if id in present else 0)]
    if not spelled:
        return text
    sampled = _places(text, ids, decode, {control[tag] for tag in spelled})

    def hide(match: re.Match[str]) -> str:
        return match[0] if match.start() in sampled else chr(_SHIFT + ord(match[0][0])) + match[0][1:]

    return re.sub("|".join(map(re.escape, spelled)), hide, text)


def _places(text: str, ids: Sequence[int], decode: Decode, control_ids: set[int]) -> set[int]:
    """Where the control ids are in the text. Pieces that begin with one lose no leading space."""
    starts = [i for i, id in enumerate(ids) if id in control_ids]
    if not starts:
        return set()
    bounds = [0, *starts, len(ids)]
    pieces = [decode(ids[i:j]) if i < j else "" for i, j in pairwise(bounds)]
    if "".join(pieces) == text:
        return set(accumulate(map(len, pieces[:-1])))
    return {len(decode(ids[:start])) for start in starts}


class TokenPlaces:
    """Which tokens hold which characters of `text` = decode(ids).

    A tag in `control` that was sampled as such is the token that it is. Else beginnings are decoded, since a character
    may be spread over tokens and a token may hold parts of two. That is done within chunks, so that a long reply costs
    about two decodings; where chunks don't decode to the text (a character lies across two, or leading spaces are
    dropped), the whole is one chunk.
    """

    def __init__(self, ids: Sequence[int], decode: Decode, text: str, control: Mapping[str, int]) -> None:
        self._ids, self._decode, self._text = ids, decode, text
        self._control = control

    def span(self, start: int, end: int) -> tuple[int, int]:
        """[start, end) in characters, not empty, as [start, end) in tokens."""
        first = last = None
        for tag in self._control:
            if self._text.startswith(tag, start, end):
                first = self._token(tag, start)
            if self._text.endswith(tag, start, end):
                last = self._token(tag, end - len(tag))
        begin = max(0, self._num_tokens(start + 1) - 1) if first is None else first
        return begin, self._num_tokens(end) if last is None else last + 1

    def _token(self, tag: str, place: int) -> int | None:
        """The token that is the tag at `place`; None: somewhere the tag is spelled, so it can't be told."""
        id, index = self._control[tag], -1
        if self._text.count(tag) != self._ids.count(id):
            return None
        for _ in range(self._text.count(tag, 0, place) + 1):
            index = self._ids.index(id, index + 1)
        return index

    @cached_property
    def _chunks(self) -> list[tuple[Sequence[int], str]]:
        """Ids and their text."""
        chunks = [self._ids[i : i + _CHUNK] for i in range(0, len(self._ids), _CHUNK)]
        pieces = [self._decode(chunk) for chunk in chunks]
        return list(zip(chunks, pieces, strict=True)) if "".join(pieces) == self._text else [(self._ids, self._text)]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(piece) for _, piece in self._chunks))

    def _num_tokens(self, num_chars: int) -> int:
        """The fewest ids whose text begins with the first `num_chars` characters."""
        index = bisect_left(self._ends, num_chars)
        chunk, piece = self._chunks[index]
        wanted = piece[: num_chars - (self._ends[index] - len(piece))]
        low, high = 0, len(chunk)
        while low < high:
            middle = (low + high) // 2
            if self._decode(chunk[:middle]).startswith(wanted):
                high = middle
            else:
                low = middle + 1
        return sum(len(chunk) for chunk, _ in self._chunks[:index]) + low
