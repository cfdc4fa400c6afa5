"""Facts: frozen values and simple operations on them. No I/O, no clock, no logging here."""
