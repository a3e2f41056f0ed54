"""What is in the chest: the phantom, its calcium, and the heart in a real scan."""
