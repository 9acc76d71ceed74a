"""Structured output: what an answer must look like, and which tokens may come next for that."""
