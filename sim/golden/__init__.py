"""The golden interpreter, which is the specification."""
