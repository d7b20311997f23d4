"""Who owns what: integers only, no array and no communication library."""

if __name__ != "pblas.layouts":
    raise ImportError("import pblas.layouts: 'layouts' is a folder of the pblas package, not a package of its own")
