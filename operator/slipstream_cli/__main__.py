"""`python -m slipstream_cli`: the same program where no script is on the path."""

from slipstream_cli.main import main

main()
