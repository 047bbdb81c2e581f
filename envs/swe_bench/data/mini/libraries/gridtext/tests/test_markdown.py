from gridtext import Table


def test_render():
    table = Table(["city", "people"], [["Oslo", 709037]])
    assert table.render("markdown").splitlines() == [
        "| city | people |",
        "| ---- | ------ |",
        "| Oslo | 709037 |",
    ]


def test_columns_are_at_least_three_wide():
    assert Table(["a"], [[1]]).render("markdown").splitlines() == ["| a   |", "| --- |", "| 1   |"]


def test_no_rows():
    assert Table(["city"]).render("markdown").splitlines() == ["| city |", "| ---- |"]
