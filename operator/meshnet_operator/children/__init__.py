"""The objects that a MeshModel owns, one module a kind. Pure: a view of the MeshModel to the object that should be
there.
"""
