"""Numbers as options take them."""

import math

import click


class NumberRange(click.FloatRange):
    """A float within limits; what is none, or has no end, is outside of all."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number that ends", param, ctx)
        return number
