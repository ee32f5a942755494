"""Building blocks shared by the units: queues, delay lines, loop nests, port signatures, arithmetic."""
