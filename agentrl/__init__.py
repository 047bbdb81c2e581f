"""agentrl: multi-turn reinforcement learning for LLM agents. Start reading at `agentrl.run`."""
