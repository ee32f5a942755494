"""Training: gradients of quantised networks, and training of a network's last layers on the device."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    package=__name__,
    title="Training",
    services={
        f"weft.{name}": f"weft.extras.training.interface:{name}" for name in ("Trained", "grad", "train")
    },
)
