"""Tokens → tree, by recursive descent: a method for each strength, the weakest first."""

from sumtree import nodes
from sumtree.errors import SyntaxProblem
from sumtree.lexer import tokens


def parse(text):
    """The tree of a text. Raises SyntaxProblem."""
    return Parser(text).whole()


class Parser:
    """Reads one text."""

    def __init__(self, text):
        self.text = text
        self.tokens = tokens(text)
        self.position = 0

    @property
    def token(self):
        """The next one."""
        return self.tokens[self.position]

    def accept(self, *texts):
        """The next token's text where it is one of these operators, which is passed then; else None."""
        token = self.token
        if token.kind == "operator" and token.text in texts:
            self.position += 1
            return token.text
        return None

    def expect(self, text):
        """Pass an operator that must be there."""
        if not self.accept(text):
            raise self.problem("expected %r" % text)

    def problem(self, message):
        """An error at the next token."""
        found = repr(self.token.text) if self.token.text else "the end"
        return SyntaxProblem("%s, found %s" % (message, found), self.text, self.token.position)

    def whole(self):
        """Expressions with `;` between them; one at the end does no harm."""
        parts = [self.statement()]
        while self.accept(";"):
            if self.token.kind == "end":
                break
            parts.append(self.statement())
        if self.token.kind != "end":
            raise self.problem("expected an operator")
        return parts[0] if len(parts) == 1 else nodes.Sequence(tuple(parts))

    def statement(self):
        """name = expression, or an expression."""
        following = self.tokens[self.position + 1 : self.position + 2]
        if self.token.kind == "name" and following and following[0].text == "=":
            name = self.token.text
            self.position += 2
            return nodes.Assignment(name, self.comparison())
        return self.comparison()

    def comparison(self):
        return self.binary(self.sum, nodes.COMPARISONS)

    def sum(self):
        return self.binary(self.product, ("+", "-"))

    def product(self):
        return self.binary(self.power, ("*", "/", "%"))

    def binary(self, operand, operators):
        """Operands of the next strength, which associate to the left."""
        left = operand()
        while operator := self.accept(*operators):
            left = nodes.Binary(operator, left, operand())
        return left

    def power(self):
        return self.binary(self.negative, ("^",))

    def negative(self):
        """A minus in front of something."""
        if self.accept("-"):
            return nodes.Negative(self.negative())
        return self.atom()

    def atom(self):
        """A number, a name, a call, or something in brackets."""
        token = self.token
        if token.kind == "number":
            self.position += 1
            return nodes.Number(number(token.text))
        if token.kind == "name":
            self.position += 1
            return nodes.Call(token.text, self.arguments()) if self.accept("(") else nodes.Name(token.text)
        if self.accept("("):
            inner = self.comparison()
            self.expect(")")
            return inner
        raise self.problem("expected a number, a name or '('")

    def arguments(self):
        """What stands between the brackets of a call."""
        if self.accept(")"):
            return ()
        found = [self.comparison()]
        while self.accept(","):
            found.append(self.comparison())
        self.expect(")")
        return tuple(found)


def number(text):
    """Whole numbers stay whole."""
    return int(text) if text.isdigit() else float(text)
