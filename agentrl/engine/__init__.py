"""The inference servers. `embedded` runs in this process on CPU or GPU; torch and transformers load only there."""
