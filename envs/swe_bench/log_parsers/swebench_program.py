"""Run as a program by a Python that has swebench: reads a request as JSON on stdin, prints the answer as JSON."""

import json
import os
import sys
from types import SimpleNamespace


def main() -> None:
    """Parse one log."""
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what swebench and its imports print is no answer
    from swebench.harness.log_parsers import PARSER_REGISTRY

    parser = PARSER_REGISTRY.get(request["parser"])
    if parser is None:
        answer = {"known": list(PARSER_REGISTRY)}
    else:
        task = SimpleNamespace(**{name: request[name] for name in ("instance_id", "repo", "version")})
        answer = {"statuses": parser(request["text"], task)}
    json.dump(answer, answers)
    answers.close()


if __name__ == "__main__":
    main()
