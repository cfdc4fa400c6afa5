"""The embedded cluster: a kubelet to try and test against with no cluster at hand. Never the production path."""
