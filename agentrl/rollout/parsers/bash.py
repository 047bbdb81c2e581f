"""A fenced block as a call of one tool::

    ```bash
    ls -la
    ```

The fences stand on lines of their own.
"""

from __future__ import annotations

import re

from agentrl.rollout.parsers.one_tool import OneToolParser


class BashParser(OneToolParser):
    """Commands in ```bash fences; blocks in other languages are text."""

    name = "bash"
    default = "bash.command"
    form = "```bash\nCOMMANDS\n```, fences on lines of their own"
    how = "write what it is to run into a fenced block, once for each call:\n```bash\ncommands\n```"
    tags = ("<think>", "</think>", "<tool_response>", "</tool_response>")
    call_tags = ("```bash\n", "\n```")
    opening = r"(?:\A|(?<=\n)|(?<=</think>))```bash[ \t]*\n"
    closing = re.compile(r"(?:\n|(?<=\n))```[ \t]*(?=\n|\Z)")
    written = "```bash\n{text}\n```"
