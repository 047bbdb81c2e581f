"""Tree → number."""

import math
import operator

from sumtree import nodes
from sumtree.errors import EvaluationProblem
from sumtree.parser import parse

CONSTANTS = {"pi": math.pi, "e": math.e}
FUNCTIONS = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
}
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
    "^": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
MAX_EXPONENT = 10_000


def evaluate(text, names=None):
    """The value of a text. `names` are values of variables."""
    evaluator = Evaluator() if names is None else Evaluator(names)
    return evaluator.run(text)


class Evaluator:
    """Evaluates texts one after the other; what one assigns the next one knows."""

    def __init__(self, names=CONSTANTS):
        self.names = names
        for name, value in CONSTANTS.items():
            self.names.setdefault(name, value)

    def run(self, text):
        """The value of a text. Raises SyntaxProblem or EvaluationProblem."""
        try:
            return self.value(parse(text))
        except RecursionError:
            raise EvaluationProblem("too deep") from None

    def value(self, node):
        """The value of a tree."""
        return getattr(self, "_" + type(node).__name__.lower())(node)

    def _number(self, node):
        return node.value

    def _name(self, node):
        try:
            return self.names[node.name]
        except KeyError:
            known = ", ".join(sorted(self.names))
            raise EvaluationProblem("unknown name %s; there are %s" % (node.name, known)) from None

    def _negative(self, node):
        return -self.value(node.operand)

    def _binary(self, node):
        left, right = self.value(node.left), self.value(node.right)
        if node.operator == "^" and abs(right) > MAX_EXPONENT:
            raise EvaluationProblem("exponents go up to %d" % MAX_EXPONENT)
        result = self.guarded(OPERATORS[node.operator], left, right)
        return int(result) if isinstance(result, bool) else result

    def _call(self, node):
        try:
            function = FUNCTIONS[node.function]
        except KeyError:
            known = ", ".join(sorted(FUNCTIONS))
            raise EvaluationProblem("unknown function %s; there are %s" % (node.function, known)) from None
        return self.guarded(function, *[self.value(argument) for argument in node.arguments])

    def _assignment(self, node):
        self.names[node.name] = self.value(node.value)
        return self.names[node.name]

    def _sequence(self, node):
        values = [self.value(part) for part in node.parts]
        return values[-1]

    def guarded(self, function, *values):
        """Errors of Python's arithmetic become ours."""
        try:
            result = function(*values)
        except ZeroDivisionError:
            raise EvaluationProblem("division by zero") from None
        except (ArithmeticError, TypeError, ValueError) as error:
            raise EvaluationProblem(str(error)) from None
        if isinstance(result, complex):
            raise EvaluationProblem("the result is no real number")
        return result
