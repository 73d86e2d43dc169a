"""Two generations in one number, as leases of hybrid jobs carry them."""

from elasticdl.job import JointGeneration


def test_one_number_says_both():
    for worlds, ps in ((0, 0), (0, 7), (3, 0), (2, 5)):
        assert JointGeneration.of(JointGeneration(worlds, ps).number) == JointGeneration(worlds, ps)


def test_before_any_loss_it_is_zero_as_for_one_holder():
    assert JointGeneration(0, 0).number == 0
    assert JointGeneration(0, 4).number == 4
