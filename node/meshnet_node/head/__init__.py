"""The head: the OpenAI-style API, the drive of the shards, and recovery. No torch, no transformers."""
