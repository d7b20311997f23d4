"""Backends: arrays, memory and communication, one folder for each."""

if __name__ != "pblas.backends":
    raise ImportError("import pblas.backends: 'backends' is a folder of the pblas package, not a package of its own")
