"""Batch → weights: losses, the policy, the trainer, checkpoints. Torch is imported here."""
