"""Study S2: how transformers bear dropout at inference, on recall and on reasoning."""
