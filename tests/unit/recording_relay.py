"""One who stands between two ends of a connection, and hears all that they say."""

import contextlib
import socket
import threading


class RecordingRelay:
    """Passes on what two ends of a connection say, and keeps it."""

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._heard = []
        self._sockets = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def heard(self):
        return b"".join(self._heard)

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                thread = threading.Thread(target=self._pass_on, args=(one, other))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, one, other):
        try:
            while data := one.recv(65536):
                self._heard.append(data)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for end in self._sockets:
            with contextlib.suppress(OSError):  # the other end has gone
                end.shutdown(socket.SHUT_RDWR)  # wakes who reads of it, which closing does not
        for thread in self._threads[1:]:
            thread.join()
        for end in self._sockets:
            end.close()
