"""Shards as Ray tasks on a real cluster, all on this machine's loopback interface: a head and two nodes that work."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import STOP_AT_ONCE, assert_same_results

from resharpen.cli import main
from resharpen.errors import UserError
from resharpen.experiments.keeping.shard import MANIFEST, RESULTS, Damaged, Foreign
from resharpen.experiments.keeping.store import Run
from resharpen.experiments.running import ray_launcher
from resharpen.experiments.running.launchers import WorkerDied
from resharpen.experiments.running.ray_task import Mailbox, unpack
from resharpen.experiments.running.runner import Observer, load, run
from resharpen.experiments.running.training import Asked
from resharpen.experiments.specs.spec import Experiment, Setting
from resharpen.models import Minimal
from resharpen.tasks import SetComplement

ENVIRONMENT = {
    **ray_launcher.LOCAL,
    "RAY_AUTH_TOKEN": "a token of these tests alone, of some length",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "500",  # a lost node is noticed in seconds
    "RAY_health_check_initial_delay_ms": "500",
}
NODE = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "include_dashboard": False}
pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster for all
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),  # Ray's own daemons
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0})
        for _ in range(2):
            cluster.add_node(**NODE)
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="module")
def lasting() -> Experiment:
    """Four shards that take a second or two each."""
    return Experiment(
        name="lasting",
        settings=tuple(Setting(SetComplement(4), s, Minimal(4, 3, 1, 3)) for s in (1, 2)),
        variants=["pre", "peri"],
        models=16,
        steps=200_000,
        batch=64,
        checkpoints=10,
        engine="native",
    )


@pytest.fixture(scope="module")
def whole(lasting: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What has to come out, whoever trains and is killed."""
    return run(lasting, tmp_path_factory.mktemp("whole") / "r", workers=1)


@pytest.fixture(scope="module")
def connected(cluster: Any) -> Iterator[Any]:
    """The cluster, with a connection that all runs share: their workers need not start again."""
    import ray

    ray.init(cluster.address, log_to_driver=False, logging_level="CRITICAL", configure_logging=False)
    yield cluster
    ray.shutdown()


def with_ray(experiment: Experiment, directory: Path, cluster: Any, **options: Any) -> Run:
    return run(experiment, directory, launcher=ray_launcher.Ray(cluster.address), **options)


@contextlib.contextmanager
def nobody_shares(directory: Path) -> Iterator[str]:
    """As `ray_launcher._word`, with a word that no node finds."""
    yield "not in any file"


@pytest.fixture(params=["shared", "apart"])
def sight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that see the run directory, and nodes that are made to believe that they do not."""
    if request.param == "apart":
        monkeypatch.setattr(ray_launcher, "_word", nobody_shares)


def files_of(store: Run) -> set[str]:
    return {path.name for path in store.directory.rglob("*") if path.is_file()} - {".lock", ".lease"}


def test_tasks_give_the_same_bits(tiny, tmp_path, cluster):
    """With a connection of its own, by address."""
    check_same_bits(tiny, tmp_path, cluster)


@pytest.mark.filterwarnings("ignore:variant .* runs on the torch engine")
def test_modules_of_the_user_s_own_give_the_same_bits(tiny, tmp_path, connected):
    nets = Path(__file__).parent.parent.parent / "nets.py"
    spec = replace(tiny, variants=[f"{nets}:Encoder"], models=2, settings=tiny.settings[1:])
    there = with_ray(spec, tmp_path / "there", connected)
    assert_same_results(there, run(spec, tmp_path / "here", workers=1))


def test_results_are_sent_back_where_the_directory_is_not_shared(tiny, tmp_path, connected, monkeypatch):
    monkeypatch.setattr(ray_launcher, "_word", nobody_shares)
    check_same_bits(tiny, tmp_path, connected)


def check_same_bits(spec: Experiment, tmp_path: Path, cluster: Any) -> None:
    events = []
    there = with_ray(spec, tmp_path / "there", cluster, observer=Observer(update=events.append))
    assert_same_results(run(spec, tmp_path / "here", workers=1), there)
    assert {event.shard for event in events} == {shard.name for shard in spec.shards()}
    assert files_of(there) == {"run.json", "README.md", "manifest.json", *RESULTS}


def test_a_node_is_killed_in_mid_run(lasting, whole, tmp_path, connected):
    """Its shard begins again elsewhere, and ends with the same bits."""
    steps, lost = defaultdict(list), []

    def on_progress(progress):
        steps[progress.shard].append(progress.step)
        under_way = [name for name, seen in steps.items() if 0 < seen[-1] < lasting.steps]
        if not lost and len(under_way) == 2:  # both nodes are at work
            lost.extend(under_way)
            connected.remove_node(next(iter(connected.worker_nodes)), allow_graceful=False)

    there = with_ray(lasting, tmp_path / "there", connected, observer=Observer(update=on_progress))
    connected.add_node(**NODE)
    again = [name for name, seen in steps.items() if seen != sorted(seen)]
    assert len(again) == 1
    assert again[0] in lost
    assert_same_results(whole, there)


@pytest.mark.usefixtures("sight")
def test_stopped_and_gone_on_with_by_local_workers(lasting, whole, tmp_path, connected):
    seen = []

    def stop() -> bool:
        return any(0 < progress.step < lasting.steps for progress in seen)

    there = with_ray(
        lasting, tmp_path / "there", connected, observer=Observer(update=seen.append, asked=lambda: Asked(stop()))
    )
    under_way = {progress.shard for progress in seen} - {shard.name for shard in there.done()}
    assert 1 <= len(under_way) <= len(connected.worker_nodes)
    assert {shard.name for shard in there.shards() if there.files(shard).state.exists()} == under_way
    resumed = []
    again = run(lasting, there.directory, workers=1, observer=Observer(update=resumed.append))
    begun = {progress.shard: progress.step for progress in reversed(resumed)}
    assert any(step > 0 for step in begun.values()), "the first report of a shard says where it starts"
    assert_same_results(whole, again)


def test_a_task_that_waits_for_the_mailbox_keeps_its_core(lasting, tmp_path, connected, monkeypatch):
    class Slow(Mailbox):
        def asked(self):
            if not (self._directory / "asked").exists():
                (self._directory / "asked").touch()
                time.sleep(3.0)  # time enough for a worker to start
            return super().asked()

    monkeypatch.setattr(ray_launcher, "Mailbox", Slow)
    seen = []
    with_ray(lasting, tmp_path / "there", connected, observer=Observer(update=seen.append))
    under_way, most = set(), 0
    for progress in seen:
        (under_way.add if progress.step < lasting.steps else under_way.discard)(progress.shard)
        most = max(most, len(under_way))
    assert 1 <= most <= len(connected.worker_nodes)


OWN = """
import multiprocessing
import os
from pathlib import Path
import resharpen as rs

@rs.norm(a=rs.learned("d", start=1.0))
def mine(x, p):
    marker = Path({marker!r})
    if os.getpid() != {driver} and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), 9)
    return (p.a * x).tanh()

@rs.norm()
def broken(x, p):
    if os.getpid() != {driver}:
        raise ArithmeticError("no norm at all")
    return x
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """A norm that kills the first worker that computes it, and one that cannot compute."""
    path = tmp_path / "own.py"
    path.write_text(OWN.format(marker=str(tmp_path / "killed"), driver=os.getpid()))
    return path


def test_own_code_travels_and_a_killed_worker_is_replaced(tiny, tmp_path, connected, own_file, monkeypatch):
    pack = ray_launcher._content

    def pack_and_hide(store: Run) -> dict[str, bytes]:
        content = pack(store)
        own_file.rename(tmp_path / "hidden")
        return content

    monkeypatch.setattr(ray_launcher, "_content", pack_and_hide)
    monkeypatch.setattr(ray_launcher, "_word", nobody_shares)
    spec = replace(tiny, variants=[f"pre+{own_file}:mine"], models=2)
    there = with_ray(spec, tmp_path / "there", connected)
    assert (tmp_path / "killed").exists()
    (tmp_path / "hidden").rename(own_file)
    assert_same_results(run(spec, tmp_path / "here", workers=1), there)


def test_a_model_that_fails_does_not_stop_the_others(tiny, tmp_path, connected, own_file):
    spec = replace(tiny, variants=["pre", f"pre+{own_file}:broken"], models=2)
    with (
        pytest.warns(match=r"/pre\+broken/00000-00001 failed: (.|\n)*your own code(.|\n)*no norm at all"),
        pytest.raises(UserError, match=r"2 of 4 shards failed \(.*sct-v4-s2/pre\+broken/00000-00001"),
    ):
        with_ray(spec, tmp_path / "there", connected)
    store = load(tmp_path / "there")
    assert {shard.variant for shard in store.done()} == {"pre"}
    assert len(store.done()) == 2


def test_what_is_sent_back_has_to_be_what_its_manifest_says(tiny, tmp_path):
    store = run(tiny, tmp_path / "r", workers=1)
    shard, other = store.shards()[:2]
    where = store.files(shard)
    content = {name: (where.directory / name).read_bytes() for name in (*RESULTS, MANIFEST)}
    foreign = {name: (store.files(other).directory / name).read_bytes() for name in (*RESULTS, MANIFEST)}
    where.discard()
    torn = {**content, RESULTS[0]: content[RESULTS[0]][:-1] + b"?"}
    for wrong, error in ((torn, Damaged), (foreign, Foreign)):
        with pytest.raises(error):
            unpack(wrong, where)
        assert not where.is_done()
    unpack({**content, "../escaped": b""}, where)
    assert where.is_done()
    assert all(map(where.read, RESULTS))
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--launcher rai", "launcher"),
        ("--address auto", "only the launcher 'ray' has an address"),
        ("--launcher ray --address ray://head:10001", "must be HOST:PORT or auto"),
        ("--launcher ray --address head", "must be HOST:PORT or auto"),
        ("--launcher ray --address 127.0.0.1:1", "no Ray cluster answers there"),
        ("--launcher ray --address 127.0.0.1:99999", "no Ray cluster answers there"),
        ("--launcher ray --workers 0", "must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_written(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["run", "fig1", "--scale", "smoke", *options.split()])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_ray(tmp_path):
    """Nothing imports it but the launcher, which says how to get it."""
    script = "import sys; sys.modules['ray'] = None; from resharpen.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "run", "fig1", "--scale", "smoke", "--launcher", "ray"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "resharpen: the launcher 'ray' needs Ray: pip install 'resharpen[ray]'\n"
    assert not list(tmp_path.iterdir())


def test_a_cluster_of_its_own_is_on_loopback_and_ctrl_c_leaves_a_run(lasting, whole, tmp_path):
    """The real command: who listens, what an interrupt does, and what is left behind."""
    out = run(lasting, tmp_path / "there", workers=1, observer=STOP_AT_ONCE).directory
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    script = "from resharpen.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "run", str(out), "--launcher", "ray", "--workers", "2"],
        env=environment | {"HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        begun = next((line for line in process.stdout if "so far:" in line), None)  # a first checkpoint
        everyone = [process.pid, *descendants(process.pid)]
        listening = listeners(everyone)
        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=120)
    finally:
        process.kill()
    assert begun, complaints
    assert process.returncode == 130, complaints
    assert "Stopped; nothing is lost" in said
    assert complaints.count("\n") <= 1  # that it is stopping
    assert len(listening) >= 4  # control store, raylet, workers
    assert all(address.endswith(LOOPBACK) for address in listening), listening
    assert not (tmp_path / ".ray").exists()
    assert ended(everyone)
    assert_same_results(whole, run(lasting, out, workers=1))


def test_the_process_that_is_connected_to_a_cluster_is_ended(tiny, tmp_path, monkeypatch):
    """As Ray does when its own processes die; here before it knows that nobody answers."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(ray_launcher, "_is_connected", lambda: False)

    def asked() -> Asked:
        for child in multiprocessing.active_children():
            child.kill()
        return Asked()

    with socket.create_server(("127.0.0.1", 0)) as server:
        launcher = ray_launcher.Ray(f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(WorkerDied, match="lost the connection to the Ray cluster"):
            run(tiny, tmp_path / "r", launcher=launcher, observer=Observer(asked=asked))
    assert not (tmp_path / "r/.shared").exists()
    assert not list((tmp_path / "tmp").iterdir())
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["raylet", "gcs_server"])
def test_processes_of_ray_are_killed(lasting, tmp_path, victim):
    """The real command says how to continue, and leaves nothing behind."""
    longer = replace(lasting, steps=2 * 10**7, checkpoints=200)
    out = run(longer, tmp_path / "there", workers=1, observer=STOP_AT_ONCE).directory
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "resharpen", "run", str(out), "--launcher", "ray", "--workers", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"TMPDIR": str(tmp_path / "tmp"), "RAY_TMPDIR": tempfile.gettempdir()}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "model-steps/s" in line)
        everyone = [process.pid, *descendants(process.pid)]
        (pid,) = [pid for pid in everyone if Path(f"/proc/{pid}/comm").read_text().strip() == victim]
        os.kill(pid, signal.SIGKILL)
        _, complaints = process.communicate(timeout=200)
    assert process.returncode == 1
    assert complaints.startswith("resharpen: lost the connection to the Ray cluster")
    assert complaints.endswith(f"finished work is kept. Continue with: resharpen run {out}\n")
    assert complaints.count("\n") == 1
    assert not (out / ".shared").exists()
    assert not list((tmp_path / "tmp").glob("resharpen-*"))
    assert ended(everyone)
    assert run(longer, out, workers=1, observer=STOP_AT_ONCE).done() == []  # it can be continued


LOOPBACK = "0100007F"
"""127.0.0.1, as the kernel writes it, also at the end of the IPv6 address that stands for it."""


def descendants(pid: int) -> list[int]:
    """Children, their children and so on."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, tasks.read_text().split()):
            found += [child, *descendants(child)]
    return found


def ended(pids: list[int]) -> bool:
    """Whether all of these processes end, in a moment."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        stats = [Path(f"/proc/{pid}/stat") for pid in pids]
        with contextlib.suppress(OSError):  # ended meanwhile
            if all(not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z" for stat in stats):
                return True
        time.sleep(0.1)
    return False


def listeners(pids: list[int]) -> list[str]:
    """Addresses at which one of these processes accepts connections."""
    links = [link for pid in pids for link in Path(f"/proc/{pid}/fd").glob("*")]
    inodes = set()
    for link in links:
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]
