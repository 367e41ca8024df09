"""The shard process: one layer range of a model behind a link, its batches, its sampling and its routes."""
