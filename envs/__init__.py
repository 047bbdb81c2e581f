"""Environments that ship with agentrl; each registers through the entry-point group agentrl.envs."""

# The folder is reached through the link agentrl/envs. Under its bare name every class would exist twice.
if __name__ != "agentrl.envs":
    raise ImportError("import agentrl.envs, not envs")
