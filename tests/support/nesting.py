"""JSON that is nested more deeply than any Python reads.

How deep one goes differs: 3.11 some 1,000 levels, 3.12 and 3.13 up to 10,000, 3.14 as far as the stack of 8 MiB does,
which is 130,000 levels and more of what is passed over.
"""

LEVELS = 500_000
DEEP = b"[" * LEVELS + b"]" * LEVELS
