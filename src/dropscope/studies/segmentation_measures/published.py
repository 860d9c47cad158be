"""The paper: "Quantitative Comparison of Monte-Carlo Dropout Uncertainty Measures for Multi-class Segmentation"
(Camarasa et al., 2020). Its grid, its patients, and the results that `claims` checks; margins and least replicates.
"""

from __future__ import annotations

N_TRAIN = (3, 5, 9, 15, 25, 30, 40, 69)
RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
NETWORKS = 144
PASSES = 50
EPOCHS = 600
PATIENTS = (69, 24, 52)  # for training, validation and test
# In each pair the first finds misclassified voxels better; averaged variance and averaged entropy do not differ.
PAIRS = (
    ("averaged_variance", "bhattacharyya"),
    ("averaged_entropy", "bhattacharyya"),
    ("averaged_variance", "kullback_leibler"),
    ("averaged_entropy", "kullback_leibler"),
    ("bhattacharyya", "kullback_leibler"),
)
MARGIN = 0.01  # of AUC-PR: a smaller difference between two measures does not matter
COST_MARGIN = 0.1  # of the time of the cheapest other measure
LEAST = (3, 30)  # experiments and patients, or the reverse, below which nothing is decided
LEAST_ROUNDS = 3  # timings of every measure, likewise
FAILED_DICE = 0.1  # a network whose mean foreground Dice on the test cases is below did not learn to segment
DICE = "background .994, wall .764, lumen .885 (Gaussian, rate .3, n_train 69; private images)"
