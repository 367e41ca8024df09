"""Makes those parts of charts/meshnet that have their source elsewhere. A test keeps them true."""
