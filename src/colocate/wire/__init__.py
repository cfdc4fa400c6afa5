"""Foreign protocols, nothing more: .proto files, the code generated from them, gRPC over unix sockets."""
