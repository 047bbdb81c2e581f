import pytest

from gridtext import Table


def cities(**options):
    return Table(["city", "people"], [["Oslo", 709037], ["Bergen", 291940]], **options)


def test_render_ascii():
    assert cities(align={"people": "right"}).render().splitlines() == [
        "+--------+--------+",
        "| city   | people |",
        "+--------+--------+",
        "| Oslo   | 709037 |",
        "| Bergen | 291940 |",
        "+--------+--------+",
    ]


def test_render_box():
    lines = cities().render("box").splitlines()
    assert lines[0] == "┌────────┬────────┐"
    assert lines[-1] == "└────────┴────────┘"


def test_render_plain():
    assert cities().render("plain").splitlines() == [
        "city   people",
        "------ ------",
        "Oslo   709037",
        "Bergen 291940",
    ]


def test_render_breaks_long_cells():
    table = Table(["n", "text"], [[1, "the quick brown fox"]])
    assert table.render(max_width=10).splitlines()[3:5] == ["| 1 | the quick |", "|   | brown fox |"]


def test_unknown_style():
    with pytest.raises(ValueError, match="ascii, box, markdown, plain"):
        cities().render("fancy")


def test_add_by_name():
    table = Table(["a", "b", "c"])
    table.add(1, c=3)
    assert table.rows == [[1, None, 3]]


def test_add_too_many():
    with pytest.raises(ValueError, match="3 values for 2 columns"):
        cities().add(1, 2, 3)


def test_unknown_column():
    with pytest.raises(KeyError, match="city, people"):
        cities().column("country")


def test_columns_are_distinct():
    with pytest.raises(ValueError):
        Table(["a", "a"])


def test_total():
    assert cities().total("people") == 1000977


def test_sort_by():
    table = cities()
    table.sort_by("city")
    assert table.column("city") == ["Bergen", "Oslo"]
    table.sort_by("people", reverse=True)
    assert table.column("city") == ["Oslo", "Bergen"]
