"""The boxes of a run: started ahead, bounded in number and memory, each for one episode and never used again."""
