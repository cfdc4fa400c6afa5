"""Extended resources of a cluster: looked at, advertised by hand, and removed once the kubelet lets go of them."""
