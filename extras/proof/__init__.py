"""Proofs of the hardware for all inputs, and certificates of compiled programs."""

from weft.hdl.extras import Extra

EXTRA = Extra(
    title="Proof",
    commands=("weft.extras.proof.proof_commands",),
    services={
        "certify a program": "weft.extras.proof.certificate:certify",
        "verify a program": "weft.extras.proof.certificate:verify",
    },
)
