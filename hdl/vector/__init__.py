"""The vector unit: requantisation, pooling, addition and softmax."""
