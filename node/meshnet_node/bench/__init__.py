"""`meshnet bench`: a local mesh measured beside transformers' own `generate`, in the same run on the same machine.

Each bench is a module with sizes (a dataclass, so that a test can run it small), `run` (measures, gives a JSON-able
dictionary) and `rows` (that dictionary as a table). Numbers are what was measured: nothing is corrected for noise; the
load of the machine before and after stands beside them.
"""
