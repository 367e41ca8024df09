# Images, and a cluster with nodes on this machine, included by the Makefile: docs/cluster.md.
.PHONY: packages possible images images-archive sbom audit nodes cluster cluster-down e2e

packages: setup ## install the Debian packages that images and nodes need, by apt-get
	$(HACK) -m cluster packages

possible: setup ## can this machine run nodes? Fails and says why where it can't
	@$(HACK) -m cluster possible

images: setup ## the images of operator, node and demo model, from Debian packages and wheels
	$(HACK) -m images build

images-archive: setup ## the same as archives for `docker load`, in dist/
	$(HACK) -m images export

sbom: setup ## what is in the images, as CycloneDX, in dist/
	$(HACK) -m images sbom

audit: setup ## ask whether an advisory is known for any package of the images
	$(HACK) -m images audit

nodes: control-plane ## find or build kubelet, kube-proxy, containerd, CoreDNS (minutes with an empty Go cache)
	$(HACK) -m cluster build-nodes

# What a cluster needs before it can start: one that somebody else made needs the tools alone.
GROUND = $(if $(MESHNET_TEST_KUBECONFIG),control-plane,nodes images)

cluster: $(GROUND) ## Kubernetes with three nodes on this machine, the chart and samples/smollm2.yaml on it
	$(HACK) -m cluster nodes-up

cluster-down: ## end it; nothing stays
	$(HACK) -m cluster nodes-down

e2e: $(GROUND) ## kill real pods under real streams (a quarter of an hour)
	MESHNET_E2E=1 $(PY) -m pytest --timeout 600 --durations 12 tests/cluster

.PHONY: e2e-policies kind soak bench-stalls
e2e-policies: nodes images ## the same for NetworkPolicies, which kube-router enforces (minutes to build it at first)
	MESHNET_E2E=1 MESHNET_E2E_POLICIES=1 $(PY) -m pytest --timeout 900 tests/cluster/test_policies.py

kind: images-archive ## the tests on a cluster that kind makes, where its node image can be pulled; needs Docker
	kind create cluster --name meshnet --kubeconfig .cache/kind.kubeconfig
	trap 'kind delete cluster --name meshnet --kubeconfig .cache/kind.kubeconfig' EXIT; \
	for archive in dist/*.tar; do kind load image-archive --name meshnet $$archive || exit 1; done; \
	MESHNET_E2E=1 MESHNET_TEST_KUBECONFIG=.cache/kind.kubeconfig $(PY) -m pytest --timeout 600 tests/cluster

MINUTES ?= 10
soak: ## random faults against random load on the running cluster, for MINUTES
	PYTHONPATH=hack:operator:tests/support $(PY) bench/soak.py --minutes $(MINUTES)

bench-stalls: ## how long a stream of the running cluster pauses for each loss of a shard, as JSON
	PYTHONPATH=hack:operator:tests/support $(PY) bench/stalls.py
