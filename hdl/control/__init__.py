"""Registers, instruction fetch, semaphores and counters."""
