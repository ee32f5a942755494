"""Language models on a device: decoding, batches, sampling and texts."""
