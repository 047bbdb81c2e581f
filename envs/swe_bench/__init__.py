"""Repositories with an issue to solve, graded by tests that the agent never sees."""
