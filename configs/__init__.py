"""Hydra YAML: one primary file per command and one group per choice (env, model, engine)."""

# The folder is reached through the link agentrl/configs. Under its bare name every class would exist twice.
if __name__ != "agentrl.configs":
    raise ImportError("import agentrl.configs, not configs")
