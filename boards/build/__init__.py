"""Building bitstreams, and estimating their size and clock."""
