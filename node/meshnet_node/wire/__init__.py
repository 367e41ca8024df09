"""What head and shard say to each other: frames, tensors, the hello's challenge, and the client side of a link."""
