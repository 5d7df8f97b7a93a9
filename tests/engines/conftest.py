"""The kernels that the fast tests of engines need, built before the first of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import TINY_TRANSFORMER

from resharpen.engines.native import minimal, retriever, transformer
from resharpen.models import Minimal, Retriever, Transformer

OLDER = ("x86-64-v3", "x86-64")
WANTED = [
    *((transformer, model, "native") for model in (Transformer(6), TINY_TRANSFORMER, Transformer(6, 1, 36, 1, 50))),
    *((retriever, Retriever(hidden), "native") for hidden in (128, 32, 16)),
    *(
        (minimal, Minimal(*sizes), "native")
        for sizes in ((12, 5, 3, 4), (11, 9, 2, 6), (9, 8, 1, 8), (5, 6, 2, 4), (4, 3, 1, 3))
    ),
    *((transformer, TINY_TRANSFORMER, march) for march in OLDER),
    *((retriever, Retriever(16), march) for march in OLDER),
    *((minimal, Minimal.usual(9), march) for march in OLDER),
]


@pytest.fixture(scope="session", autouse=True)
def kernels(worker_id: str) -> None:
    """Two at a time; of two processes of tests one begins at the end, so that they meet in the middle."""
    order = WANTED if worker_id in ("master", "gw0") else WANTED[::-1]
    with ThreadPoolExecutor(2 if worker_id == "master" else 1) as pool:
        list(pool.map(lambda job: job[0].kernel(*job[1:]), order))
