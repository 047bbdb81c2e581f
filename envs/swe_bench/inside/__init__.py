"""Programs that run in a box, each alone: its text is sent there, and the standard library is all that it has."""
