"""SPI flash: the chip, its controllers, a simulation model, and images of programs."""
