"""`<tool_call><function=…><parameter=…>`: Qwen3-Coder, Qwen 3.5 and later, Nemotron 3.

::

    <tool_call>
    <function=add>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>
"""

from __future__ import annotations

import re

from agentrl.rollout.parsers.elements import ElementParser, Elements, value_without

_OWN = "/?tool_call>|function=|/function>|parameter=|/parameter>"


class Qwen3CoderParser(ElementParser):
    """Arguments between tags that carry their names; one line break on each side of a value is not part of it."""

    name = "qwen3_coder"
    form = "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>"
    how = (
        "write it like this, once for each call, with one parameter element for each argument; lists and objects are "
        "JSON:\n<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>"
    )
    call_tags = ("<tool_call>", "</tool_call>")
    tags = ("<think>", "</think>", "<tool_response>", "</tool_response>", *call_tags)
    elements = Elements(
        head=re.compile(r"\s*<function=([^<>\n]++)>\s*"),
        argument=re.compile(rf"<parameter=([^<>\n]++)>({value_without(_OWN)})</parameter>\s*"),
        tail=re.compile(r"</function>\s*</tool_call>"),
        written=(
            "<tool_call>\n<function={name}>\n",
            "<parameter={key}>{value}</parameter>\n",
            "</function>\n</tool_call>",
        ),
        padding="\n",
    )
