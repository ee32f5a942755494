"""What operators mean in real numbers, a module for each kind, found by `weft.extras.training.gradient.meaning`."""
