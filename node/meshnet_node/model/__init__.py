"""Which tensors a range of layers needs, and a transformers model cut to it. Knows nothing of sessions or the wire."""
