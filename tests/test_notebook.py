"""The example notebook runs from top to bottom, shows progress, pictures and tables; an interrupt loses nothing."""

import signal
import threading
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import resharpen as rs
from resharpen.notebook import Interruptible
from resharpen.signals import orderly

NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook.ipynb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_notebook_runs_and_shows():
    book = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(book, timeout=300, kernel_name="python3").execute()
    shown = [
        "".join(str(out.get("data", {}).get("text/html", "")) for out in cell.get("outputs", [])) for cell in book.cells
    ]
    trained, drawn, compared = (shown[i] for i in (1, 3, 5))
    assert "<progress value='1.0000'" in trained, "the live view ends full"
    assert "1 of 1" not in trained
    assert "2 of 2 finished" in trained, "a run displays itself"
    assert "<img src='data:image/png;base64," in drawn
    assert "peri" in compared
    trace = book.cells[8].outputs[0]["data"]["text/plain"]
    assert "'weights': (1, 3, 3)" in trace
    assert "'output': (3, 6)" in trace


def test_one_interrupt_stops_in_order_and_a_second_at_once():
    with orderly(Interruptible()) as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked.is_stopping()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_outside_a_notebook_it_is_the_plain_run(tiny, tmp_path, capsys):
    seen = []
    worker = threading.Thread(target=lambda: seen.append(rs.run(tiny, tmp_path / "run", workers=1)))
    worker.start()
    worker.join(60)
    assert len(seen[0].done()) == len(seen[0].shards())
    assert capsys.readouterr().out == ""
