"""Tables of numbers in text files."""

import numpy as np
import pytest
import torch

from ravnest.data.files import as_source
from ravnest.data.tables import table
from ravnest.errors import JobError


def read(source):
    columns = source.read(np.arange(len(source)))
    return {name: (str(values.dtype), values.tolist()) for name, values in columns.items()}


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("1,2,0\n3,4,1\n", None, ("y", "torch.int64", [0, 1], [[1, 2], [3, 4]])),
        ("a,y,b\n1,0.5,2\n3,4,4\n", None, ("y", "torch.float32", [0.5, 4], [[1, 2], [3, 4]])),
        ("size; price\n\n1;7\n3;8\n", "price", ("price", "torch.int64", [7, 8], [[1], [3]])),
        ("\ufeffy\ta\n1e3\t2\n-4\t.5", None, ("y", "torch.int64", [1000, -4], [[2], [0.5]])),
        ('"y","the size"\r\n"1","2"\r\n', None, ("y", "torch.int64", [1], [[2]])),
    ],
)
def test_one_column_is_learnt_from_all_others(tmp_path, text, target, expected):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    name, dtype, wanted, rest = expected
    assert read(table(path, target)) == {"x": ("torch.float32", rest), name: (dtype, wanted)}


def test_it_is_a_dataset_like_any_other(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("1,2\n3,4\n")
    assert [field.name for field in as_source(str(path)).fields] == ["x", "y"]
    torch.testing.assert_close(as_source(path).read(np.array([1]))["x"], torch.tensor([[3.0]]))


@pytest.mark.parametrize(
    ("text", "target", "complaint"),
    [
        ("", None, "is empty"),
        ("1\n2\n", None, "at least two columns"),
        ("a,b\n", None, "at least two columns"),
        ("a,b\n1,2\n", None, r"which column is to be learnt\? Say target=…, one of a, b"),
        ("a,b\n1,2\n", "c", r"no column 'c'; which column is to be learnt\?"),
        ("a,y\n1,2\n3,many\n", None, "row 3: the column y has 'many', which is no number"),
        ("1,2\n3,\n", None, "row 2: the column number 2 has '', which is no number"),
        ("a,y\n1,2\n3,4,5\n", None, "row 3: 3 columns, the first row has 2"),
        ("a,y\n1,0.5,2\n2,4,4\n", None, "row 2: 3 columns, the first row has 2"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused_with_the_place(tmp_path, text, target, complaint):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(JobError, match=complaint):
        table(path, target)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xff\xfe1,2\n")
    with pytest.raises(JobError, match="cannot be read as a table"):
        table(path)


def test_the_target_cannot_have_the_name_of_the_inputs(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,z\n1,2\n3,4\n")
    with pytest.raises(JobError, match="called 'x'"):
        table(path, "x")
