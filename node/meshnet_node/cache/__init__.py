"""Session state of the layers of one shard: what it is made of, and which sessions hold it."""
