"""Images without Docker and without a registry: Debian packages, wheels of the lock files, our packages.

The same contents as Dockerfile.operator and Dockerfile.node, as an OCI layout whose layers are kept by the digest of
what they are made from: a change of our code makes one small layer anew.
"""
