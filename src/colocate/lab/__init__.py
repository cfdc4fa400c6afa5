"""The embedded cluster: a kubelet to try things on with no cluster at hand. Never the production path."""
