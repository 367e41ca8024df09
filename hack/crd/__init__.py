"""Makes the CustomResourceDefinition from its source and the API server's own schemas of the core types."""
