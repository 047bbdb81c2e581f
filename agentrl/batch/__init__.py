"""Group → Rows → Batch: aligned tokens, advantages, packing. No torch here."""
