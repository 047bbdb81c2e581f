"""`<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`: GLM 4.5 and later.

::

    <tool_call>add
    <arg_key>a</arg_key>
    <arg_value>1</arg_value>
    </tool_call>
"""

from __future__ import annotations

import re

from agentrl.rollout.parsers.elements import ElementParser, Elements, value_without

_OWN = "/?tool_call>|/?arg_key>|/?arg_value>"
_VALUE_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


class GlmParser(ElementParser):
    """Keys and values in turn, each between tags. White space in a value is part of it."""

    name = "glm"
    form = "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>"
    how = (
        "write it like this, once for each call, with a key and a value for each argument; lists and objects are "
        "JSON:\n<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>"
    )
    call_tags = ("<tool_call>", "</tool_call>")
    tags = ("<think>", "</think>", "<tool_response>", "</tool_response>", *call_tags, *_VALUE_TAGS)
    elements = Elements(
        head=re.compile(r"\s*([^<>\s]++)\s*(?=<)"),
        argument=re.compile(
            rf"<arg_key>([^<>]++)</arg_key>\s*<arg_value>({value_without(_OWN)})</arg_value>\s*", re.DOTALL
        ),
        tail=re.compile("</tool_call>"),
        written=(
            "<tool_call>{name}\n",
            "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
            "</tool_call>",
        ),
    )
