"""Which parallel layout a model gets on which GPUs, and why the others lost. Pure: no I/O."""
