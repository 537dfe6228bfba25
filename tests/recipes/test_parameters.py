"""What is said of names and parameters that are wrong, and what is made of right ones."""

import subprocess
import sys

import pytest
from samples_of_recipes import named

from ravnest.errors import JobError
from ravnest.recipes.losses import LOSSES
from ravnest.recipes.metrics import METRICS
from ravnest.recipes.optimizers import OPTIMIZERS
from ravnest.recipes.parameters import REQUIRED
from ravnest.recipes.schedules import SCHEDULES
from ravnest.recipes.transforms import TRANSFORMS


@pytest.mark.parametrize(
    ("given", "meant"),
    [("cross_entropi", "cross_entropy"), ("CrossEntropyLoss", "cross_entropy"), ("MSELoss", "mse")],
)
def test_an_unknown_name_is_told_which_was_probably_meant(given, meant):
    with pytest.raises(JobError, match=f"no loss '{given}'; did you mean '{meant}'") as error:
        LOSSES.values(named(given))
    assert "bce_with_logits" in str(error.value)


def test_an_unknown_parameter_is_told_which_was_probably_meant():
    with pytest.raises(JobError, match=r"'adamw' has no parameter 'beta'; did you mean 'betas'\?"):
        OPTIMIZERS.values(named("adamw", beta=[0.9, 0.99]))
    with pytest.raises(JobError, match=r"no parameter 'learning_rate'; did you mean 'lr'\? The na"):
        OPTIMIZERS.values(named("adam", learning_rate=0.1))
    with pytest.raises(JobError, match=r"no parameter 'warp'; the names are "):
        OPTIMIZERS.values(named("adam", warp=9))


def test_a_missing_parameter_is_named_with_what_it_may_be():
    with pytest.raises(JobError, match="'normalize' needs the parameter 'mean': a list of numbers"):
        TRANSFORMS.values(named("normalize", std=1.0))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"lr": "0.1"}, "'lr' of the optimizer 'adam' is '0.1'; expected a number from 0"),
        ({"lr": True}, "'lr' .* is True; expected a number"),
        ({"lr": -1}, "'lr' .* is -1; expected a number from 0"),
        ({"lr": float("nan")}, "'lr' .* is nan; expected a number"),
        ({"lr": 10**400}, "'lr' .* expected a number"),
        ({"lr": None}, "'lr' .* is None; expected a number"),
        ({"betas": [0.9]}, "'betas' .* expected a list of 2 numbers from 0 up to 1"),
        ({"betas": [0.9, 2.0]}, "'betas' .* expected a list of 2 numbers"),
        ({"amsgrad": 1}, "'amsgrad' .* is 1; expected true or false"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_refused_with_what_was_expected(params, expected):
    with pytest.raises(JobError, match=expected):
        OPTIMIZERS.values(named("adam", **params))


def test_whole_numbers_are_numbers_and_fractions_are_not_whole():
    assert OPTIMIZERS.values(named("adam", lr=1))["lr"] == 1.0
    with pytest.raises(JobError, match=r"'k' .* is 2\.5; expected a whole number from 1"):
        METRICS.values(named("top_k", k=2.5))


def test_parameters_that_do_not_go_together_are_refused():
    with pytest.raises(JobError, match="'sgd': nesterov needs a momentum above 0"):
        OPTIMIZERS.values(named("sgd", nesterov=True))


def test_defaults_are_acceptable_themselves():
    for registry in (LOSSES, OPTIMIZERS, TRANSFORMS, METRICS, SCHEDULES):
        for name in registry:
            for param in registry[name].params.values():
                if param.default is not REQUIRED:
                    param.accept(param.default)


def test_checking_does_not_wait_for_torch():
    program = (
        "import ravnest.recipes.checking, ravnest.data.dividing, sys; print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "False"
