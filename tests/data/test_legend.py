"""What numbers mean, in the files of weights."""

import pytest
import torch
from safetensors.torch import save_file

from ravnest.api.jobs import Legend
from ravnest.data.legend import as_metadata, read_legend
from ravnest.errors import JobError


@pytest.mark.parametrize(
    "legend",
    [
        Legend(),
        Legend(classes=("cats", "dogs")),
        Legend(vocabulary=("\n", " ", '"', "ü", "\u2028")),
        Legend(classes=("a",), vocabulary=("b",)),
    ],
)
def test_what_is_written_is_read_again(tmp_path, legend):
    save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors", as_metadata(legend))
    assert read_legend(tmp_path / "w.safetensors") == legend


def test_weights_without_metadata_mean_nothing_in_particular(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors")
    assert read_legend(tmp_path / "w.safetensors") == Legend()
    assert as_metadata(None) == {}


@pytest.mark.parametrize("text", ["cats, dogs", '{"0": "cats"}', "[1, 2]"])
def test_other_metadata_of_these_names_is_refused_with_the_file(tmp_path, text):
    save_file({"w": torch.zeros(1)}, tmp_path / "w.safetensors", {"classes": text})
    with pytest.raises(JobError, match=r"w\.safetensors"):
        read_legend(tmp_path / "w.safetensors")
