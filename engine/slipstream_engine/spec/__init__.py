"""Drafts: where they come from, how long they are, and which of their tokens are the model's own."""
