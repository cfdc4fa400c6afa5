"""The clean room: a command with an empty home, on a machine that seems never to have run Colocate.

`python -m tests.room COMMAND` runs it there and says what it left behind. Only the standard library is used.
"""
