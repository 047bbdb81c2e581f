"""Cells: values become lines of text of a known width."""


def text_of(value):
    """What a value looks like in a table; None is an empty cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format(value, ".6g")
    return str(value)


def width_of(text):
    """How many columns of a terminal a line takes."""
    return len(text)


def lines_of(text, max_width=None):
    """The lines of a cell, none of them wider than max_width."""
    lines = []
    for line in text.splitlines() or [""]:
        lines.extend(wrap(line, max_width) if max_width else [line])
    return lines


def wrap(line, max_width):
    """Break a line at spaces; a word that is too long is broken anywhere."""
    if max_width < 1:
        raise ValueError("max_width must be at least 1")
    lines, current = [], ""
    for word in line.split(" "):
        candidate = word if not current else current + " " + word
        if width_of(candidate) <= max_width:
            current = candidate
            continue
        if current:
            lines.append(current)
        while width_of(word) > max_width:
            head = take(word, max_width)
            lines.append(head)
            word = word[len(head):]
        current = word
    lines.append(current)
    return lines


def take(text, width):
    """The longest beginning that fits, at least one character."""
    taken = ""
    for character in text:
        if taken and width_of(taken + character) > width:
            break
        taken += character
    return taken


def pad(text, width, align="left"):
    """Fill a line up with spaces."""
    space = width - width_of(text)
    if space <= 0:
        return text
    if align == "left":
        return text + " " * space
    if align == "right":
        return " " * space + text
    if align == "center":
        left = space // 2
        return " " * left + text + " " * (space - left)
    raise ValueError("align must be left, right or center, not %r" % (align,))
