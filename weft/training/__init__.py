"""Training on the device: what `weft train` and `weft.train` do around the steps that run there."""
