"""The `slipstream` command: one file per command group."""
