"""CSV: a table from text, and text from a table."""

import csv as _csv
import io

from gridtext import cells
from gridtext.table import Table


def read(text, delimiter=","):
    """A table from CSV; the first line names the columns. Numbers become numbers, empty fields None.

    A byte order mark, as spreadsheets write it, isn't part of the first name.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    text = text.lstrip("\ufeff")
    lines = list(_csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    lines = [line for line in lines if line]
    if not lines:
        raise ValueError("there is no header: the text is empty")
    table = Table(lines[0])
    for line in lines[1:]:
        table.add(*[value(field) for field in line])
    return table


def value(field):
    """A field as a number where it is one."""
    field = field.strip()
    if field == "":
        return None
    for kind in (int, float):
        try:
            return kind(field)
        except ValueError:
            continue
    return field


def write(table, delimiter=","):
    """CSV with a header; lines end in \\n."""
    out = io.StringIO(newline="")
    writer = _csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([cells.text_of(cell) for cell in row])
    return out.getvalue()
