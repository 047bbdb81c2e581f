"""An environment in a namespace package: acme_envs itself has no __init__.py, so that others can add to it."""
