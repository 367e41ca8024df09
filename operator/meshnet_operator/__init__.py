"""The operator of Meshnet: a MeshModel becomes Deployments, Services and a route table, and stays so.

Two lanes share one view of the cluster: `publisher` turns pods into the route table and owes nothing to `reconciler`,
which makes everything else. What they decide is pure (`children`, `routes`, `diff`, `plan`, `status`); only `cluster`
talks to the API, only `handlers` and `__main__` know kopf.
"""
