"""A pool of Ray workers gives what this process gives, in the same order, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdec_core.cluster import JobError, open_pool
from specdec_core.interface.errors import ConfigError, PromptError
from tests.cluster import jobs

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def pool(two_workers):
    pool = open_pool("auto")
    yield pool
    pool.close()


@pytest.mark.parametrize("timed", [False, True])
def test_results_come_in_the_order_of_the_jobs(pool, timed):
    numbers = [(n,) for n in range(6)]
    assert list(pool.map(jobs.square, numbers, timed=timed)) == list(open_pool().map(jobs.square, numbers))


def test_jobs_run_side_by_side_and_timed_ones_alone(pool, tmp_path):
    pairs = [(str(tmp_path), "a", "b"), (str(tmp_path), "b", "a")]
    assert list(pool.map(jobs.meet, pairs)) == [True, True]
    assert all(pool.map(jobs.alone, [(str(tmp_path),)] * 4, timed=True))
    assert len(set(pool.map(jobs.process, [()] * 4, timed=True))) == 1


@pytest.mark.parametrize("timed", [False, True])
def test_a_job_whose_worker_dies_is_tried_again(pool, tmp_path, timed):
    given = [(str(tmp_path), n) for n in range(3)]
    assert list(pool.map(jobs.die_once, given, timed=timed)) == [0, 1, 2]


@pytest.mark.parametrize("timed", [False, True])
def test_a_job_that_always_kills_its_worker_is_an_error_and_the_pool_goes_on(pool, timed):
    with pytest.raises(JobError, match="the worker of a job died, as did those of 3 more attempts"):
        list(pool.map(jobs.die, [()], timed=timed))
    assert list(pool.map(jobs.square, [(2,)], timed=timed)) == [4]


@pytest.mark.parametrize("timed", [False, True])
def test_what_a_job_raises_comes_back_with_its_cause(pool, timed):
    with pytest.raises(PromptError, match="too long") as caught:
        list(pool.map(jobs.refuse, [("too long",)], timed=timed))
    assert "in refuse" in str(caught.value.__cause__)
    with pytest.raises(JobError, match=r"ZeroDivisionError: division by zero \(jobs.py:\d+\)"):
        list(pool.map(jobs.divide, [(1,), (0,)], timed=timed))
    with pytest.raises(JobError, match="SystemExit: 3"):
        list(pool.map(jobs.leave, [()], timed=timed))


def test_gpus_are_left_to_ray(pool):
    assert pool.gpus == 0
    with pytest.raises(ConfigError, match="no machine of the cluster has 1 GPUs"):
        list(pool.map(jobs.square, [(1,)], timed=True, gpus=1))


def test_each_gpu_has_a_worker_that_keeps_it(tmp_path):
    """Ray takes our word for two GPUs, and gives each job the number of its own."""
    code = (
        "import sys, ray; from specdec_core.cluster import open_pool; from tests.cluster import jobs\n"
        "ray.init(address='local', num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)\n"
        "pool = open_pool('auto')\n"
        "devices = list(pool.map(jobs.device, [()] * 6, gpus=1))\n"
        "assert sorted(gpu for _, gpu in set(devices)) == ['0', '1'], devices\n"
        "folder = sys.argv[1]\n"
        "assert list(pool.map(jobs.die_once, [(folder, n) for n in range(5)], gpus=1)) == list(range(5))\n"
        "found = list(pool.map(jobs.divide, [(1,), (0,), (2,)], gpus=1, return_exceptions=True))\n"
        "assert [type(one).__name__ for one in found] == ['float', 'JobError', 'float'], found\n"
        "found = list(pool.map(jobs.die, [()], gpus=1, return_exceptions=True))\n"
        "assert 'died' in str(found[0])\n"
        "assert pool.gpus == 2 and pool.workers(1, 1) == 2\n"
        "(found,) = pool.map(jobs.device, [()], timed=True, gpus=1)\n"
        "assert found[1] in ('0', '1')\n"
    )
    _python(code, tmp_path)


def _python(code: str, *arguments: object) -> str:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cluster_that_cannot_be_reached_is_an_error(tmp_path):
    code = (
        "from specdec_core.cluster import open_pool\n"
        "from specdec_core.interface import ConfigError\n"
        "try: open_pool('nonsense')\n"
        "except ConfigError as error: print(error)\n"
    )
    assert _python(code).startswith("--ray nonsense: the cluster cannot be reached: ")


def test_a_cluster_that_has_lost_its_machines_is_an_error(pool, monkeypatch):
    import ray

    dead = [{**node, "Alive": False} for node in ray.nodes()]
    with monkeypatch.context() as lost:
        lost.setattr(ray, "nodes", lambda: dead)
        for ask in (pool.workers, lambda: pool.gpus, lambda: pool.map(abs, [(1,)])):
            with pytest.raises(ConfigError, match=r"--ray auto: the cluster has no machine that is alive"):
                ask()
    assert list(pool.map(abs, [(-1,)])) == [1]


def test_ctrl_c_cancels_the_jobs(two_workers, tmp_path):
    code = (
        "import sys; from specdec_core.cluster import open_pool; from tests.cluster import jobs\n"
        "pool = open_pool('auto')\n"
        "try: list(pool.map(jobs.wait, [(sys.argv[1],)] * 3))\n"
        "except KeyboardInterrupt: pool.close(); print('stopped')\n"
    )
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAY_ADDRESS": two_workers, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"},
    )
    _until(lambda: len(list(tmp_path.iterdir())) == 2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "stopped\n"
    _until(lambda: not any(_runs(int(path.name)) for path in tmp_path.iterdir()))
    assert len(list(tmp_path.iterdir())) == 2


def _until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        return "ray::" in Path(f"/proc/{pid}/cmdline").read_text() and not _zombie(pid)
    except FileNotFoundError:
        return False


def _zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
