"""Raw files to shards: read, check, filter, de-duplicate, split by cluster, encode."""

if __name__ != "protlat.data_prep":
    raise ImportError("import this folder as protlat.data_prep (pip install -e .); files are not run by path")
