"""The contract between operator, engine and gateway: kinds, names, conditions, configuration."""
