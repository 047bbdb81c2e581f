"""`<action>…</action>` as a call of one tool: text games, browsers, ReAct-like prompts."""

from __future__ import annotations

import re

from agentrl.rollout.parsers.one_tool import OneToolParser


class ActionParser(OneToolParser):
    """The text between the tags is the argument, white space at its edges aside where it isn't a string."""

    name = "action"
    default = "action.action"
    form = "<action>TEXT</action>"
    how = "write what it is to do between tags, once for each call:\n<action>text</action>"
    call_tags = ("<action>", "</action>")
    tags = ("<think>", "</think>", "<tool_response>", "</tool_response>", *call_tags)
    closing = re.compile("</action>")
    written = "<action>{text}</action>"
