"""Tools that environments share; each registers through the entry-point group agentrl.tools."""

# The folder is reached through the link agentrl/tools. Under its bare name every class would exist twice.
if __name__ != "agentrl.tools":
    raise ImportError("import agentrl.tools, not tools")
