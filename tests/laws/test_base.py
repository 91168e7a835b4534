from tests.laws.samples import merged_vector, network


def test_base_changes_nothing() -> None:
    assert not merged_vector("base", network(3)).any()
