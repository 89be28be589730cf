"""End-to-end runs: each module holds a run config and `run(config)`."""

if __name__ != "protlat.pipelines":
    raise ImportError("import this folder as protlat.pipelines (pip install -e .); files are not run by path")
