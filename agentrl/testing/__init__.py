"""For the tests of plugin authors and our own: a scripted endpoint, a toy environment, a recorder in memory."""
