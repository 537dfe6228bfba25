"""The example for a server: it needs nothing but Ravnest, and the model learns what it is given."""

import ast
import sys

import pytest
import torch
from example_runs import EXAMPLES
from torch import nn

from ravnest.session.programs import load_request

JOB = EXAMPLES / "spirals" / "job.py"


@pytest.fixture
def request_(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield load_request(JOB)
    sys.modules.pop("ravnest_job_job", None)


def test_it_imports_nothing_that_ravnest_does_not_install():
    tree = ast.parse(JOB.read_text(encoding="utf-8"))
    names = {
        one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names
    }
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"torch"}


def test_the_model_learns_as_the_readme_says(request_):
    """In plain PyTorch, with the settings of the file."""
    points, arms = request_.data
    count = round(len(arms) * (1 - request_.validation))
    settings = request_.training()
    optimizer = torch.optim.AdamW(request_.model.parameters(), **request_.optimizer_params)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    for _ in range(settings.epochs):
        for rows in torch.randperm(count).split(settings.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(request_.model(points[rows]), arms[rows]).backward()
            optimizer.step()
        schedule.step()
    found = request_.model(points[count:]).argmax(1)
    assert (found == arms[count:]).float().mean() > 0.95
