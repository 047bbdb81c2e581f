"""The table: columns, rows, and how they are drawn."""

from gridtext import cells, layout, markdown, styles


class Table:
    """Rows of cells under named columns."""

    def __init__(self, columns, rows=None, align={}):
        self.columns = [str(column) for column in columns]
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("two columns have the same name")
        self.align = align
        for column in self.align:
            self.index(column)
        self.rows = list(rows or ())

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)

    def index(self, column):
        """Position of a column. Raises KeyError with the columns that there are."""
        try:
            return self.columns.index(column)
        except ValueError:
            raise KeyError("no column %r; there are %s" % (column, ", ".join(self.columns))) from None

    def add(self, *values, **named):
        """Add a row, by position or by the columns' names; what is missing is empty."""
        if len(values) > len(self.columns):
            raise ValueError("%d values for %d columns" % (len(values), len(self.columns)))
        row = list(values) + [None] * (len(self.columns) - len(values))
        for column, value in named.items():
            row[self.index(column)] = value
        self.rows.append(row)

    def column(self, name):
        """All values of a column."""
        position = self.index(name)
        return [row[position] for row in self.rows]

    def sort_by(self, column, reverse=False):
        """Sort in place; rows that are equal there keep their order."""
        position = self.index(column)
        self.rows.sort(key=lambda row: row[position], reverse=reverse)

    def total(self, column):
        """Sum of the numbers in a column; empty cells count as nothing."""
        return sum(value for value in self.column(column) if value is not None)

    def render(self, style="ascii", max_width=None):
        """The table as text, without a line end at the end.

        max_width: of each cell; longer ones are broken into lines.
        """
        if style == "markdown":
            return markdown.render(self)
        style = styles.find(style)
        texts = [[cells.text_of(value) for value in row] for row in [self.columns] + self.rows]
        blocks = [[cells.lines_of(text, max_width) for text in row] for row in texts]
        widths = layout.widths(blocks, len(self.columns))
        aligns = [self.align.get(column, "left") for column in self.columns]
        drawn = [layout.draw(row, widths, aligns, style) for row in blocks]
        lines = [style.rule("top", widths), *drawn[0], style.rule("header", widths)]
        for row in drawn[1:]:
            lines.extend(row)
        lines.append(style.rule("bottom", widths))
        return "\n".join(line for line in lines if line is not None)

    def __str__(self):
        return self.render()
