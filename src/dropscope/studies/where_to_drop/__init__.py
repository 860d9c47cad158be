"""Study S1: where should dropout go in an image classifier? A grid search over placements, with its analyses."""
