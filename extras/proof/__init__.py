"""Proofs of the hardware for all inputs, and certificates of compiled programs."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    package=__name__,
    title="Proof",
    services={
        "certify a program": "weft.extras.proof.certificate:certify",
        "verify a program": "weft.extras.proof.certificate:verify",
    },
)
