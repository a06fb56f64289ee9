"""A pool of Ray workers gives what this process gives, in the same order, whatever happens to a worker."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdec_core.cluster import JobError
from specdec_core.cluster.ray_pool import RayPool
from specdec_core.interface.errors import ConfigError, PromptError
from tests.cluster import jobs

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def pool(two_workers):
    pool = RayPool("auto")
    yield pool
    pool.close()


@pytest.fixture(params=["side by side", "alone"])
def run(request, pool):
    """Return a function that runs jobs, one way or the other, and returns their results."""
    if request.param == "alone":
        return lambda function, given: [pool.alone(function, *job) for job in given]
    return lambda function, given: list(pool.map(function, given))


def test_results_come_in_the_order_of_the_jobs(run):
    assert run(jobs.square, [(n,) for n in range(6)]) == [n * n for n in range(6)]


def test_jobs_run_side_by_side_or_alone_in_one_process(pool, tmp_path):
    pairs = [(str(tmp_path), "a", "b"), (str(tmp_path), "b", "a")]
    assert list(pool.map(jobs.meet, pairs)) == [True, True]
    assert len({pool.alone(jobs.process) for _ in range(4)}) == 1


def test_a_job_whose_worker_dies_is_tried_again(run, tmp_path):
    assert run(jobs.die_once, [(str(tmp_path), n) for n in range(3)]) == [0, 1, 2]


def test_a_job_that_always_kills_its_worker_is_an_error_and_the_pool_goes_on(run):
    with pytest.raises(JobError, match="died, as did those of 3 more attempts"):
        run(jobs.die, [()])
    assert run(jobs.square, [(2,)]) == [4]


def test_what_a_job_raises_comes_back_with_its_cause(run):
    with pytest.raises(PromptError, match="too long") as caught:
        run(jobs.refuse, [("too long",)])
    assert "in refuse" in str(caught.value.__cause__)
    with pytest.raises(JobError, match="ZeroDivisionError: division by zero"):
        run(jobs.divide, [(1,), (0,)])


def test_gpus_are_left_to_ray(pool):
    assert pool.gpus == 0
    with pytest.raises(ConfigError, match="no machine of the cluster has 1 GPUs"):
        pool.alone(jobs.square, 1, gpus=1)


def test_each_job_gets_a_gpu_of_its_own():
    """Ray takes our word for two GPUs, and gives each job the number of its own."""
    code = (
        "import ray; from specdec_core.cluster.ray_pool import RayPool; from tests.cluster import jobs\n"
        "ray.init(address='local', num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)\n"
        "pool = RayPool('auto')\n"
        "devices = list(pool.map(jobs.device, [()] * 4, gpus=1))\n"
        "assert {gpu for _, gpu in devices} == {'0', '1'}, devices\n"
        "assert pool.gpus == 2 and pool.workers(1, 1) == 2\n"
        "assert pool.alone(jobs.device, gpus=1)[1] in ('0', '1')\n"
    )
    process = _python(code, address="")
    assert process.wait(timeout=120) == 0


def test_a_cluster_that_cannot_be_reached_is_an_error():
    process = _python("from specdec_core.cluster.ray_pool import RayPool\nRayPool('nonsense')", address="")
    _, errors = process.communicate(timeout=120)
    assert "ConfigError: --ray nonsense: the cluster cannot be reached: " in errors


def test_ctrl_c_cancels_the_jobs(two_workers, tmp_path):
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from specdec_core.cluster.ray_pool import RayPool; from tests.cluster import jobs\n"
        "pool = RayPool('auto')\n"
        f"try: list(pool.map(jobs.wait, [({str(tmp_path)!r},)] * 3))\n"
        "except KeyboardInterrupt: pool.close(); print('stopped')\n"
    )
    process = _python(code, address=two_workers)
    _until(lambda: len(list(tmp_path.iterdir())) == 2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "stopped\n"
    _until(lambda: not any(_runs(path.name) for path in tmp_path.iterdir()))
    assert len(list(tmp_path.iterdir())) == 2


def _python(code: str, *, address: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": address}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=environment)


def _until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def _runs(pid: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return "ray::" in Path(f"/proc/{pid}/cmdline").read_text() and "(zombie)" not in status
    except FileNotFoundError:
        return False
