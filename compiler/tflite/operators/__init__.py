"""The operators of TFLite that weft reads, a few that are alike in each file, found by being there."""
