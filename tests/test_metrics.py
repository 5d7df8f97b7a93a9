import numpy as np

from resharpen import metrics


def test_total_variation_is_half_the_l1_distance_and_the_best_event():
    """TVD is also the largest difference in probability of any event."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(4), 2)
    events = [[bool(mask >> i & 1) for i in range(4)] for mask in range(16)]
    assert np.isclose(metrics.total_variation(p, q), max(p[event].sum() - q[event].sum() for event in events))


def test_mean_by_length_by_hand():
    values = np.array([[1.0, 2.0, 3.0, 10.0], [0.0, 4.0, 8.0, 1.0]])
    lengths, means, counts = metrics.mean_by_length(values, np.array([2, 1, 2, 5]))
    assert lengths.tolist() == [1, 2, 5]
    assert counts.tolist() == [1, 2, 1]
    assert means.tolist() == [[2.0, 2.0, 10.0], [4.0, 4.0, 1.0]]
