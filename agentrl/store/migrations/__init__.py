"""The schema's history, run by `agentrl.store.schema` when a store is opened."""
