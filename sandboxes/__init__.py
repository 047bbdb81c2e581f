"""Sandbox backends; each registers through the entry-point group agentrl.sandboxes."""

# The folder is reached through the link agentrl/sandboxes. Under its bare name every class would exist twice.
if __name__ != "agentrl.sandboxes":
    raise ImportError("import agentrl.sandboxes, not sandboxes")
