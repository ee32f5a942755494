"""Properties of the boards' hardware that hold for all inputs and all times, for `weft.extras.proof.engine` to
prove."""
