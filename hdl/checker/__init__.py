"""The program checker: which programs the hardware may run."""
