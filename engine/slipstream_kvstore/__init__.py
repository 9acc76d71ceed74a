"""Pages of the key-value cache as bytes: layout, keys, the shared cache and its client."""
