"""Foreign protocols only: .proto files, code generated from them, gRPC over unix sockets, kube-scheduler's
extender."""
