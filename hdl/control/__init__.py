"""Control of the pipelined core: registers, instruction fetch, semaphores and counters."""
