"""Tasks made of real packages: one small fault is put in, and their own tests find it."""
