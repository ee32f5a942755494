"""Instructions in the making: memory allocation, LOAD and STORE, tasks and their schedule."""
