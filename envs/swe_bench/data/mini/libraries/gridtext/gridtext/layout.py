"""Layout: how wide columns are, and rows of several lines."""

from gridtext import cells


def widths(blocks, num_columns):
    """For each column the width of its widest line."""
    found = [0] * num_columns
    for row in blocks:
        for position, lines in enumerate(row):
            for line in lines:
                found[position] = max(found[position], cells.width_of(line))
    return found


def draw(row, column_widths, aligns, style):
    """The lines of one row: cells with fewer lines than the highest are filled up below."""
    height = max((len(lines) for lines in row), default=1)
    drawn = []
    for number in range(height):
        padded = []
        for lines, width, align in zip(row, column_widths, aligns):
            line = lines[number] if number < len(lines) else ""
            padded.append(cells.pad(line, width, align))
        drawn.append(style.row(padded))
    return drawn
