"""Drafts: where they come from, how long they are, and what of them is the model's own."""
