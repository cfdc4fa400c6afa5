"""Foreign protocols, nothing more: .proto files and code generated from them, gRPC over unix sockets, extenders."""
