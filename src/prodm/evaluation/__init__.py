"""Is it any good? The paper's metrics, and those it left out, on patients never trained on."""
