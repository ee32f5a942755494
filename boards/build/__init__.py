"""From a board's design to a bitstream: tools, reports, estimates and records of builds."""
