"""The golden interpreter: the specification of every instruction in numpy."""
