"""The blinded reader study: readers judge methods without knowing which is which."""
