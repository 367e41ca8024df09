"""A Kubernetes control plane of this machine's own, for tests and benches: no container, no registry, no kubelet."""
