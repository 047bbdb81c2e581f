"""Arithmetic expressions as text: parse, evaluate, print."""

from sumtree.errors import EvaluationProblem, Problem, SyntaxProblem
from sumtree.evaluation import Evaluator, evaluate
from sumtree.parser import parse

__all__ = ["EvaluationProblem", "Evaluator", "Problem", "SyntaxProblem", "evaluate", "parse"]
__version__ = "0.7.1"
