"""Task → Trajectory: the AgentLoop and what it needs."""
