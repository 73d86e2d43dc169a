"""Debian's Prometheus, as tests run it."""

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import psutil
import pytest
import yaml

WAIT_SECONDS = 120

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is missing: scripts/browser.sh installs it",
)


class Prometheus:
    """Debian's Prometheus, which looks each second; used as a context."""

    def __init__(self, folder, config, **files):
        """Prepare to run in a folder that is made, with small files beside the configuration."""
        folder.mkdir()
        config = config | {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
        for name, text in (files | {"prometheus.yaml": yaml.safe_dump(config)}).items():
            (folder / name).write_text(text)
        self._folder = folder

    def __enter__(self):
        self._log = (self._folder / "log").open("w+")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self._folder}/prometheus.yaml",
                f"--storage.tsdb.path={self._folder}/data",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            self._port = self._find_port()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _find_port(self):
        process, deadline = psutil.Process(self._process.pid), time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            listening = [c for c in process.net_connections("tcp") if c.status == "LISTEN"]
            is_ready = "Server is ready" in (self._folder / "log").read_text()
            if listening and is_ready:
                return listening[0].laddr.port
            threading.Event().wait(0.05)
        raise AssertionError((self._folder / "log").read_text())

    def get(self, path, **words):
        query = urllib.parse.urlencode(words)
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}"
        with urllib.request.urlopen(address, timeout=120) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def ask(self, query):
        """Return the values of a query now."""
        result = self.get("query", query=query)["result"]
        return [float(one["value"][1]) for one in result]

    def until(self, query):
        """Wait until a query has data; return it."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := self.ask(query)):
            assert time.monotonic() < deadline, query
            threading.Event().wait(0.2)
        return found
