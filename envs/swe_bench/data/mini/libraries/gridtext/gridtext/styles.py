"""Styles: which characters a table is drawn with."""


class Style:
    """The lines around cells. `None` for a rule leaves that rule out."""

    def __init__(self, name, vertical, top=None, header=None, bottom=None, padding=1, edges=True):
        self.name = name
        self.vertical = vertical
        self.top = top
        self.header = header
        self.bottom = bottom
        self.padding = padding
        self.edges = edges

    def rule(self, which, widths):
        """The line above, below or under the header, or None."""
        characters = getattr(self, which)
        if characters is None:
            return None
        left, fill, joint, right = characters
        parts = [fill * (width + 2 * self.padding) for width in widths]
        line = joint.join(parts)
        return left + line + right if self.edges else line

    def row(self, cells):
        """One line of text from padded cells."""
        space = " " * self.padding
        line = self.vertical.join(space + cell + space for cell in cells)
        return self.vertical + line + self.vertical if self.edges else line.rstrip()

    def __repr__(self):
        return "Style(%r)" % self.name


STYLES = {
    "ascii": Style("ascii", "|", "+-++", "+-++", "+-++"),
    "box": Style("box", "│", "┌─┬┐", "├─┼┤", "└─┴┘"),
    "plain": Style("plain", " ", None, " - -", None, padding=0, edges=False),
    "markdown": Style("markdown", "|", None, "|-||", None),
}


def find(style):
    """A style by its name, or the style itself."""
    if isinstance(style, Style):
        return style
    try:
        return STYLES[style]
    except KeyError:
        known = ", ".join(sorted(STYLES))
        raise ValueError("unknown style %r; the styles are %s" % (style, known)) from None
