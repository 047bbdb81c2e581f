"""A vLLM server of ours: `process` starts and ends it, `engine` speaks to it, `inside` and `main` run in it."""
