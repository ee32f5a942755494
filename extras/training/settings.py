"""Settings of training: one record for the command line and the Python API."""

from __future__ import annotations

from dataclasses import dataclass

from weft.arguments import SEED, Real, Whole, check_fields, option


@dataclass(frozen=True)
class Settings:
    """Settings of stochastic gradient descent.

    `rate` falls to a third after 60 % of the epochs, and once more after 85 %. With `adapter` above 0, the weights
    stay, and a low-rank adapter of that rank is trained for each.

    Raises
    ------
    InputError
        If a value has a wrong type or is out of range.
    """

    epochs: int = option(10, Whole("Number of passes over all samples.", 1, 10_000))
    batch: int = option(32, Whole("Samples in each step.", 1, 4096))
    rate: float = option(0.01, Real("Learning rate of the first epochs.", 1e-9, 1000))
    momentum: float = option(0.9, Real("Momentum of the gradients.", 0, 0.9999))
    seed: int = option(0, Whole("Seed of the order of samples.", *SEED))
    adapter: int = option(
        0, Whole("Train low-rank adapters of this rank; 0 trains the weights themselves.", 0, 1024)
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def rate_in(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        falls = (epoch >= 0.6 * self.epochs) + (epoch >= 0.85 * self.epochs)
        return self.rate / 3**falls
