"""`python -m protlat` is the `protlat` command."""

from protlat.cli.main import main

main()
