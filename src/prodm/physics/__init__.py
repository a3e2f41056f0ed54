"""How a moving object is seen by a scanner: by views, and as a phase."""
