"""Program checker: static proof that a program is safe to run on the hardware."""
