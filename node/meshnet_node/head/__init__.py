"""The head: HTTP API, tokens and the drive of the shards. Must not know torch or weights."""
