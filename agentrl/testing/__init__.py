"""For the tests of plugin authors and our own: the contract suite, scripted endpoints, a toy environment."""
