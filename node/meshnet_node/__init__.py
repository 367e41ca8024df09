"""Meshnet's node: the head and the shards that serve one causal language model from several processes."""

__version__ = "0.1.0"
