import torch
from helpers import tensors

from resharpen.models.layers import Bound
from resharpen.parts import Parts, Placement


def test_rms_norm_has_one_epsilon_and_one_gain_a_model():
    """Wherever the features are: the model axis is first, the others are the activations'."""
    parts = Parts(Placement(residual=True))
    theta = {"g_residual": torch.tensor([[1.0, 1.0], [2.0, 0.5]])}
    bound = Bound(parts, theta, {"rms_epsilon": torch.tensor([0.0, 12.5])})
    for shape in ((2, 1, 2), (2, 1, 1, 1, 2)):
        x = torch.tensor([[[3.0, 4.0]], [[3.0, 4.0]]]).view(shape)
        y = bound.norm("residual", x)
        assert y.shape == x.shape
        assert torch.allclose(y[0].flatten(), torch.tensor([3.0, 4.0]) / 12.5**0.5)
        assert torch.allclose(y[1].flatten(), torch.tensor([6.0, 2.0]) / 5)


def test_a_norm_that_the_placement_lacks_is_nothing():
    x = torch.randn(2, 3, 4)
    bound = Bound(Parts(Placement()), tensors({}), {"rms_epsilon": torch.ones(2)})
    assert bound.norm("block_in", x) is x
