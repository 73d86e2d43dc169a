"""Which tests of a run go together, and which of them a slice has."""

import gc

import pytest

from scripts.slices import slice_of


def pytest_addoption(parser):
    """Take the option of a slice."""
    parser.addoption("--slice", metavar="N/M", help="run part N, from 0, of M parts of the tests")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Look for no garbage meanwhile, and later on not in the modules that are there by then."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure():
    """Else libraries that look at the end tell of leaks."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keep tests together that share what is set up; when all others have chosen, slice.

    `--dist=loadgroup` takes the group from the end of a test's name. The marker `xdist_group` of
    pytest-xdist 3.8 would write it to a field that pytest 9.2 does not read.
    """
    together = {item: item.nodeid for item in items}
    for item in items:
        if group := shared_set_up(item):
            together[item] = group
            if hasattr(config, "workerinput"):  # one worker of pytest-xdist runs them
                item._id = type(item.id).parse(f"{item.nodeid}@{group}")
    yield
    if wanted := config.getoption("--slice"):
        number, count = map(int, wanted.split("/"))
        chosen = slice_of([together[item] for item in items], number, count)
        left_out = [item for item in items if together[item] not in chosen]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if together[item] in chosen]


def shared_set_up(item):
    """Return what tells the tests that share what a fixture makes once for them, or None."""
    made = item._fixtureinfo.name2fixturedefs.values()
    if not any(one.scope in ("module", "class") for several in made for one in several):
        return None
    spec = getattr(item, "callspec", None)
    scopes = spec._arg2scope.items() if spec else ()
    numbers = [str(spec.indices[name]) for name, scope in scopes if scope.value == "module"]
    return "-".join([item.path.stem, *numbers])
