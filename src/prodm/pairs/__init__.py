"""Training pairs: a still scan, a motion, and the blocks cut from both."""
