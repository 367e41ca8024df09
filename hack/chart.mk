# The chart's targets, included by the Makefile.
.PHONY: chart test-chart

chart:          ## values.yaml, README table and copies of charts/meshnet from their sources
	PYTHONPATH=hack $(PY) -m chart

test-chart:     ## the chart against a real API server
	$(PY) -m pytest tests/chart
