import pytest

from gridtext import Table, csv


def test_read():
    table = csv.read("name,n\nx,1\ny,2.5\nz,\n")
    assert table.columns == ["name", "n"]
    assert table.rows == [["x", 1], ["y", 2.5], ["z", None]]


def test_read_quoted():
    assert csv.read('a,b\n"x, y","one\ntwo"\n').rows == [["x, y", "one\ntwo"]]


def test_read_another_delimiter():
    assert csv.read("a;b\n1;2\n", delimiter=";").rows == [[1, 2]]


def test_read_passes_over_empty_lines():
    assert csv.read("a\n\n1\n\n").rows == [[1]]


def test_read_nothing():
    with pytest.raises(ValueError, match="no header"):
        csv.read("")


def test_write():
    table = Table(["a", "b"], [["x, y", 1], [None, True]])
    assert csv.write(table) == 'a,b\n"x, y",1\n,yes\n'


def test_there_and_back():
    text = "name,n\nx,1\ny,2.5\n"
    assert csv.write(csv.read(text)) == text
