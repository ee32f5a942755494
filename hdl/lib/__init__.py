"""Components that have nothing to do with the machine: FIFOs, delays, loop nests, ports."""
