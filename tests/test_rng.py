import pytest
import torch

from hetfl_core.rng import key, numpy_stream, stream


def test_a_stream_depends_on_all_four_arguments_and_on_nothing_else():
    base = (0, "anna", 0, "init")
    others = [(1, "anna", 0, "init"), (0, "ben", 0, "init"), (0, "anna", 1, "init"), (0, "anna", 0, "noise")]
    keys = {key(*args) for args in [base, *others]}
    assert len(keys) == 5
    torch.manual_seed(1)
    first = torch.rand(3, generator=stream(*base))
    torch.manual_seed(2)
    assert torch.equal(first, torch.rand(3, generator=stream(*base)))
    assert (numpy_stream(*base).random(3) == numpy_stream(*base).random(3)).all()


def test_the_key_is_part_of_what_a_seed_means():
    """A changed hash would silently change every published record."""
    assert key(0, "anna", 0, "init") == 4601531041573864362


def test_arguments_cannot_run_into_each_other():
    assert key(1, "2", 3, "x") != key(1, "23", 0, "x")
    assert key(0, "a", 1, "1x") != key(0, "a", 11, "x")


def test_a_client_is_a_name():
    with pytest.raises(TypeError, match="client must be a str, such as a client's name, got"):
        key(0, 3, 0, "init")
