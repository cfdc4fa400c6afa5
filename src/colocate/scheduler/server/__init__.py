"""The extender's HTTP server: sockets, callers, bodies, and what people may ask of it."""
