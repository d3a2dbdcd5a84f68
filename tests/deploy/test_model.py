"""The model of a large fleet: `benches/fleet.py`."""

import importlib.util
import subprocess
import sys

import pytest
from conftest import ROOT

MODEL = ROOT / "benches" / "fleet.py"


@pytest.fixture(scope="module")
def model():
    spec = importlib.util.spec_from_file_location("fleet", MODEL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_it_prints_its_answers():
    done = subprocess.run([MODEL, "--workers", "20", "--sandboxes", "2000"], capture_output=True, text=True, check=True)
    for part in ["A worker:", "Placement", "A router:", "Lists:", "The queue"]:
        assert part in done.stdout


def test_numbers_that_make_no_sense_are_refused():
    done = subprocess.run([MODEL, "--life", "-1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--life -1.0: say more than 0" in done.stderr


def test_a_fleet_with_room_takes_every_creation_at_once(model):
    done = model.Fleet(50, 100, 0.5, 3).run(0.5, 300, 10)
    assert done.asked == done.made > 50
    assert done.refused == 0


def test_a_full_fleet_refuses(model):
    fleet = model.Fleet(5, 10, 1.0, 3)
    done = fleet.run(1.0, 1e9, 1)
    assert done.made == done.refused == 0, "nothing ends, so nothing is asked for"
    done = fleet.run(1.0, 5, 10)
    assert done.made > 0
    assert done.refused > 0
