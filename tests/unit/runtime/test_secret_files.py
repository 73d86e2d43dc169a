"""Whose secrets are read, and whose are refused, by real users of this system."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from elasticdl.errors import ConfigError
from elasticdl.runtime.secret_files import check_secret

USER, FS_GROUP = 12_345, 23_456
CHECK = """
import json, os, pathlib, sys
from elasticdl.runtime.secret_files import check_secret
user, group, groups = json.loads(sys.argv[2])
os.setgroups(groups)
os.setgid(group)
os.setuid(user)
check_secret(pathlib.Path(sys.argv[1]), "--token_file")
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become other users")


@pytest.fixture
def secret():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "token")
        path.write_text("00")
        yield path


def check_as(path, user=USER, group=USER, groups=()):
    """Check a file in a process of that user, and return what it says in the end."""
    words = [sys.executable, "-c", CHECK, str(path), json.dumps([user, group, list(groups)])]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    return done.stderr.splitlines()[-1:] or ["accepted"]


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o660, 0o620])
def test_own_secret_that_others_can_reach_is_refused(secret, mode):
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=f"expected mode 0600, found 0{mode:o}"):
        check_secret(secret, "--token_file")


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_own_secret_of_its_owner_alone_is_accepted(secret, mode):
    secret.chmod(mode)
    check_secret(secret, "--token_file")


@needs_root
@pytest.mark.parametrize(
    ("owner", "group", "mode", "process", "is_accepted"),
    [
        # As a Secret is mounted into a pod with an fsGroup.
        (0, FS_GROUP, 0o440, {"groups": [FS_GROUP]}, True),
        (0, FS_GROUP, 0o440, {"group": FS_GROUP}, True),
        (0, FS_GROUP, 0o440, {"user": 0, "group": 0, "groups": [FS_GROUP]}, True),
        # Root's own group is everybody's who administers the machine.
        (0, 0, 0o440, {"user": 0, "group": 0}, False),
        (0, FS_GROUP, 0o444, {"groups": [FS_GROUP]}, False),
        (0, FS_GROUP, 0o460, {"groups": [FS_GROUP]}, False),
        # A user's own file, which the user could make private.
        (USER, FS_GROUP, 0o440, {"groups": [FS_GROUP]}, False),
        (USER + 1, FS_GROUP, 0o440, {"groups": [FS_GROUP]}, False),
    ],
)
def test_group_may_read_a_secret_that_was_mounted_for_this_process(
    secret, owner, group, mode, process, is_accepted
):
    os.chown(secret, owner, group)
    secret.chmod(mode)
    (said,) = check_as(secret, **process)
    assert said == "accepted" if is_accepted else "ConfigError: --token_file=" in said, said
