"""Weights from the trainer to the engines, with proof (V2). `base` is the contract; one file per transport."""
