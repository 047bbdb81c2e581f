"""What can go wrong."""


class Problem(Exception):
    """Base of all errors of this package."""


class SyntaxProblem(Problem):
    """The text is no expression. Lines and columns count from 1."""

    def __init__(self, message, text, position):
        lines = text[:position].splitlines() or [""]
        self.line = len(lines)
        self.column = len(lines[-1]) + 1
        super().__init__("line %d, column %d: %s" % (self.line, self.column, message))


class EvaluationProblem(Problem):
    """The expression has no value."""
