"""Opens checkpoints without torch: what they are, their tensors, their tokeniser."""
