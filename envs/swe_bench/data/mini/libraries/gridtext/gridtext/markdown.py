"""Tables in Markdown, as GitHub and others read them."""

from gridtext import cells, styles


def render(table):
    """The whole table; columns are at least three wide, for the rule."""
    rows = [[cells.text_of(value) for value in row] for row in [table.columns] + table.rows]
    widths = [max([3] + [cells.width_of(row[n]) for row in rows]) for n in range(len(table.columns))]
    aligns = [table.align.get(column, "left") for column in table.columns]
    style = styles.STYLES["markdown"]
    lines = [style.row([cells.pad(*each) for each in zip(row, widths, aligns)]) for row in rows]
    lines.insert(1, style.row(["-" * width for width in widths]))
    return "\n".join(lines)
