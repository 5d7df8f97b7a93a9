"""Tests that share a cluster, a browser or a long run go to one process."""

import pytest


@pytest.mark.xdist_group("together")
def test_marks_of_groups_are_heard(request, worker_id):
    """If they are not, all is well but for the time: every process has its own cluster."""
    assert worker_id == "master" or request.node.nodeid.endswith("@together")
