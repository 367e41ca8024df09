# The operator's targets, included by the Makefile.
PY ?= .venv/bin/python
HACK = PYTHONPATH=hack:operator $(PY)

.PHONY: control-plane crd test-operator bench-operator

control-plane: setup ## find or build etcd, the API server and its tools (minutes with an empty Go cache)
	$(HACK) -m cluster build

crd:            ## crds/ and docs/resource.md from hack/crd/meshmodel.yaml
	$(HACK) -m crd

test-operator:  ## the operator against a real API server
	$(PY) -m pytest tests/operator

bench-operator: ## 200 MeshModels: pod event to table, idle requests, memory, as JSON
	$(HACK) bench/operator.py
