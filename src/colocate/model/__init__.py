"""Facts: frozen values and the little algebra on them. No I/O, no clock, no logging here."""
