"""The systolic array and the matrix unit that feeds it."""
