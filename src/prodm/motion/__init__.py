"""How calcium moves while it is scanned: 21 profiles and the trajectories drawn from them."""
