"""How it is done: arrays, memory and communication, one folder per backend."""

if __name__ != "pblas.backends":
    raise ImportError("import pblas.backends: 'backends' is a folder of the pblas package, not a package of its own")
