"""How a correction is learnt: windows drawn from the store, and one loop for every method."""
