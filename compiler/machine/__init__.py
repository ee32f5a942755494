"""What instructions are made of: memories, LOAD and STORE, tasks and their order."""
