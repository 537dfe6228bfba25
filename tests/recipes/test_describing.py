"""docs/recipes.md names everything there is, as it is."""

import re
from pathlib import Path

from ravnest.recipes.describing import REGISTRIES, tables

DOCUMENT = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_documentation_has_every_name_with_its_parameters():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.endswith(tables()), (
        "docs/recipes.md is not up to date: replace all after its last comment by what "
        "ravnest.recipes.describing.tables() gives"
    )


def test_the_tables_are_complete():
    for title, registry in REGISTRIES.items():
        part = tables().split(f"## {title}")[1].split("## ")[0]
        assert set(re.findall(r"^\| `(\w+)`", part, re.MULTILINE)) == set(registry)


def test_the_example_is_a_recipe_that_passes():
    from samples_of_recipes import column, dataset

    from ravnest.recipes.checking import check_recipe

    (program,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.M)
    names = {}
    exec(program, names)
    data = dataset(column("image", "uint8", 3, 32, 32), column("label", "int64"))
    check_recipe(names["recipe"], data)
