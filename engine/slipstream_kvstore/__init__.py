"""Pages of the key-value cache as bytes; imports nobody."""
