"""What is done with stored trajectories and steps: look again, play again, grade, score, fork, recompute."""
